//! Megatron-Bridge (NeMo): Python recipes on Megatron-Core. Legality is Megatron-Core's.
