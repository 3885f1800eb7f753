//! A model in the making: layers one by one, folded into blocks and segments at the end.

use std::collections::BTreeMap;

use crate::spec::model::{Block, Model, Mtp, Norm, Position, SCHEMA, Segment};

/// Longest group of layers that is looked for when a pattern repeats.
const LONGEST_GROUP: usize = 48;

/// Everything of a model except its layers.
pub(super) struct Draft {
    pub hidden: u64,
    pub vocabulary: u64,
    pub tied: bool,
    pub position: Position,
    pub norm: Norm,
    pub norm_epsilon: Option<f64>,
    pub embedding_norm: bool,
    pub final_norm: bool,
    pub head_bias: bool,
    pub embedding_width: Option<u64>,
    pub max_sequence: u64,
    pub dropout: bool,
    pub unstated: Vec<String>,
    layers: Vec<usize>,
    blocks: Vec<(String, Block)>,
    mtp: Option<(u32, usize)>,
}

impl Draft {
    pub fn new(hidden: u64, vocabulary: u64) -> Self {
        Self {
            hidden,
            vocabulary,
            tied: false,
            position: Position::Rotary,
            norm: Norm::RmsNorm,
            norm_epsilon: None,
            embedding_norm: false,
            final_norm: true,
            head_bias: false,
            embedding_width: None,
            max_sequence: 2048,
            dropout: false,
            unstated: Vec::new(),
            layers: Vec::new(),
            blocks: Vec::new(),
            mtp: None,
        }
    }

    /// Adds the next layer; equal blocks share the first one's name.
    pub fn layer(&mut self, name: &str, block: Block) {
        let at = self.block(name, block);
        self.layers.push(at);
    }

    /// Multi-token-prediction modules that run a block.
    pub fn predict(&mut self, modules: u32, name: &str, block: Block) {
        self.mtp = Some((modules, self.block(name, block)));
    }

    /// The block of the last layer.
    pub fn last(&self) -> Option<&Block> {
        self.layers.last().map(|&at| &self.blocks[at].1)
    }

    fn block(&mut self, name: &str, block: Block) -> usize {
        if let Some(at) = self.blocks.iter().position(|(_, known)| *known == block) {
            return at;
        }
        let taken = |name: &str| self.blocks.iter().any(|(known, _)| known == name);
        let name = if taken(name) {
            (2..).map(|n| format!("{name}-{n}")).find(|name| !taken(name)).unwrap_or_default()
        } else {
            name.to_owned()
        };
        self.blocks.push((name, block));
        self.blocks.len() - 1
    }

    pub fn finish(self, name: &str) -> Model {
        let names = |part: &[usize]| part.iter().map(|&at| self.blocks[at].0.clone()).collect();
        let layers = folded(&self.layers)
            .into_iter()
            .map(|(repeat, group)| Segment { repeat, of: names(group) })
            .collect();
        Model {
            schema: SCHEMA,
            name: name.to_owned(),
            hidden: self.hidden,
            vocabulary: self.vocabulary,
            vocabulary_divisor: 128,
            tied_embeddings: self.tied,
            position: self.position,
            norm: self.norm,
            norm_epsilon: self.norm_epsilon,
            embedding_norm: self.embedding_norm,
            final_norm: self.final_norm,
            head_bias: self.head_bias,
            embedding_width: self.embedding_width,
            max_sequence: self.max_sequence,
            dropout: self.dropout,
            unstated: self.unstated,
            layers,
            mtp: self.mtp.map(|(modules, at)| Mtp { modules, block: self.blocks[at].0.clone() }),
            blocks: self.blocks.into_iter().collect::<BTreeMap<_, _>>(),
        }
    }
}

/// The order as repeated groups: at each place the group that covers most layers, the shortest such;
/// what does not repeat is gathered.
fn folded(order: &[usize]) -> Vec<(u32, &[usize])> {
    let mut parts: Vec<(u32, std::ops::Range<usize>)> = Vec::new();
    let mut at = 0;
    while at < order.len() {
        let (mut length, mut repeat) = (1, 1);
        for group in 1..=LONGEST_GROUP.min(order.len() - at) {
            let times = order[at..].chunks_exact(group).take_while(|c| *c == &order[at..at + group]).count();
            if times > 1 && times * group > length * repeat {
                (length, repeat) = (group, times);
            }
        }
        match parts.last_mut() {
            Some((1, gathered)) if repeat == 1 => gathered.end = at + length,
            _ => parts.push((repeat as u32, at..at + length)),
        }
        at += length * repeat;
    }
    parts.into_iter().map(|(repeat, range)| (repeat, &order[range])).collect()
}

#[cfg(test)]
mod tests {
    use super::folded;
    use proptest::prelude::*;

    #[test]
    fn patterns_are_found() {
        assert_eq!(folded(&[0; 32]), [(32, &[0][..])]);
        assert_eq!(folded(&[0, 0, 0, 1, 1, 1, 1]), [(3, &[0][..]), (4, &[1][..])]);
        assert_eq!(folded(&[0, 0, 1, 0, 0, 1, 0, 0]), [(2, &[0, 0, 1][..]), (2, &[0][..])]);
        assert_eq!(folded(&[0, 1, 2, 3]), [(1, &[0, 1, 2, 3][..])]);
    }

    proptest! {
        #[test]
        fn folding_keeps_the_order(order in prop::collection::vec(0usize..3, 1..120)) {
            let back: Vec<usize> = folded(&order).into_iter().flat_map(|(n, part)| part.repeat(n as usize)).collect();
            prop_assert_eq!(back, order);
        }
    }
}
