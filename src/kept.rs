//! Values that took work to make, until there are too many of them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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

/// The same for several threads: what one makes the others wait for, and do not make again unless all have gone meanwhile.
#[derive(Debug)]
pub struct Shared<K, V, const MOST: usize>(Arc<Mutex<Kept<K, Arc<OnceLock<V>>, MOST>>>);

impl<K, V, const MOST: usize> Default for Shared<K, V, MOST> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, V, const MOST: usize> Clone for Shared<K, V, MOST> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Eq + Hash, V: Clone, const MOST: usize> Shared<K, V, MOST> {
    /// The value of a key, made if it is not here. `make` must not ask the same memory.
    pub fn get(&self, key: K, make: impl FnOnce() -> V) -> V {
        let place = {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(kept.get(key, Arc::default))
        };
        place.get_or_init(make).clone()
    }
}
