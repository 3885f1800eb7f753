//! Values that took work to make, until there are too many of them.

use std::collections::HashMap;
use std::hash::Hash;

/// At most `MOST` values by key; when one more comes, all others go.
#[derive(Debug)]
pub struct Kept<K, V, const MOST: usize>(HashMap<K, V>);

impl<K, V, const MOST: usize> Default for Kept<K, V, MOST> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, V, const MOST: usize> Kept<K, V, MOST> {
    /// The value of a key, made if it is not here.
    pub fn get(&mut self, key: K, make: impl FnOnce() -> V) -> &V {
        if self.0.len() >= MOST && !self.0.contains_key(&key) {
            self.0.clear();
        }
        self.0.entry(key).or_insert_with(make)
    }
}
