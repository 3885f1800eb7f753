//! What the lightest splits of whole layers weigh, where every layer has a weight by its chunk and sort.

/// Chunks that are filled in model order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunks<'a> {
    /// Sort of every layer, and how many sorts there are.
    pub order: &'a [u8],
    pub sorts: usize,
    /// By chunk: the fewest layers, and whether it takes any.
    pub least: &'a [(u32, bool)],
}

impl Chunks<'_> {
    /// What the lightest split weighs that puts the layers from each on into the chunks from each on, by chunk and layer;
    /// infinite where there is none. `each` is as in [`Row::each`].
    pub fn lightest(&self, each: &[f64]) -> Vec<f64> {
        let (layers, count) = (self.order.len(), self.least.len());
        let width = layers + 1;
        let mut table = vec![f64::INFINITY; (count + 1) * width];
        table[count * width + layers] = 0.0;
        let weight = |k: usize, layer: usize| each[k * self.sorts + usize::from(self.order[layer])];
        // The same where a chunk has its fewest layers already.
        let mut more = vec![0.0; width];
        for (k, &(least, open)) in self.least.iter().enumerate().rev() {
            let (own, after) = table[k * width..].split_at_mut(width);
            if !open {
                own.copy_from_slice(&after[..width]);
                continue;
            }
            more[layers] = after[layers];
            for layer in (0..layers).rev() {
                more[layer] = after[layer].min(weight(k, layer) + more[layer + 1]);
            }
            let least = least as usize;
            for layer in 0..width.saturating_sub(least) {
                let fewest: f64 = (layer..layer + least).map(|layer| weight(k, layer)).sum();
                own[layer] = fewest + more[layer + least];
            }
        }
        table
    }
}
