//! Megatron-Bridge (NeMo): Python recipes on Megatron-Core. Legality is Megatron-Core's.

use super::export::{ExportRequest, ExportedFile};
use super::{Broken, broken};

/// Writes a recipe.
pub(super) fn write(_: &ExportRequest) -> Result<Vec<ExportedFile>, Broken> {
    Err(broken("not yet"))
}
