//! Places for values, each with a name that is never another one's.

/// A value's name: where it lies, and which of all that lay there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    index: u32,
    generation: u32,
}

impl Id {
    /// Where it lies: a small number, for tables beside the slab. Another value has it once this one is gone.
    #[inline]
    pub fn index(self) -> u32 {
        self.index
    }

    /// As one number.
    #[inline]
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Of [`Id::to_bits`].
    #[inline]
    pub fn from_bits(bits: u64) -> Id {
        Id { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// Places of a chunk, a word's bits.
const CHUNK: u32 = u64::BITS;

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

#[derive(Debug)]
struct Chunk<T> {
    /// None once it was given back.
    places: Option<Box<[Place<T>]>>,
    /// Which of them have a value.
    filled: u64,
    /// The first generation of places that are made.
    generation: u32,
}

impl<T> Chunk<T> {
    fn places(&mut self) -> &mut [Place<T>] {
        let generation = self.generation;
        self.places.get_or_insert_with(|| (0..CHUNK).map(|_| Place { generation, value: None }).collect())
    }
}

/// Values by [`Id`]. They lie in chunks of 64, so that none moves when there are more, and room for twice as many is never held.
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// Numbers of the chunks that have room. Invariant: each of those once, and no other.
    open: Vec<u32>,
    len: usize,
    limit: usize,
}

impl<T> Slab<T> {
    /// For at most `limit` values.
    pub fn new(limit: usize) -> Slab<T> {
        // So that no index is u32::MAX, and there is always a place for the last one.
        let limit = limit.min((u32::MAX - CHUNK) as usize);
        Slab { chunks: Vec::new(), open: Vec::new(), len: 0, limit }
    }

    /// Values in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is no room.
    pub fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    /// Puts in what `value` makes, who is told its name; None, and not asked, where there is no room.
    pub fn insert_with(&mut self, value: impl FnOnce(Id) -> T) -> Option<Id> {
        if self.is_full() {
            return None;
        }
        if self.open.is_empty() {
            self.open.push(self.chunks.len() as u32);
            self.chunks.push(Chunk { places: None, filled: 0, generation: 0 });
        }
        let number = *self.open.last()?;
        let chunk = &mut self.chunks[number as usize];
        let at = chunk.filled.trailing_ones();
        let place = &mut chunk.places()[at as usize];
        let id = Id { index: number * CHUNK + at, generation: place.generation };
        place.value = Some(value(id));
        chunk.filled |= 1 << at;
        if chunk.filled == u64::MAX {
            self.open.pop();
        }
        self.len += 1;
        Some(id)
    }

    /// Takes a value out; from then on its name is nobody's. (A place has 2^32 of them.)
    pub fn remove(&mut self, id: Id) -> Option<T> {
        let chunk = self.chunks.get_mut((id.index / CHUNK) as usize)?;
        let at = id.index % CHUNK;
        let place = chunk.places.as_mut()?.get_mut(at as usize)?;
        if place.generation != id.generation {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        if chunk.filled == u64::MAX {
            self.open.push(id.index / CHUNK);
        }
        chunk.filled &= !(1 << at);
        self.len -= 1;
        Some(value)
    }

    /// The value of that name.
    #[inline]
    pub fn get(&self, id: Id) -> Option<&T> {
        let place = self.place(id.index)?;
        place.value.as_ref().filter(|_| place.generation == id.generation)
    }

    /// The value of that name, to be changed.
    #[inline]
    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let chunk = self.chunks.get_mut((id.index / CHUNK) as usize)?;
        let place = chunk.places.as_mut()?.get_mut((id.index % CHUNK) as usize)?;
        place.value.as_mut().filter(|_| place.generation == id.generation)
    }

    /// The name of the value that lies there now, as a timer's key says it.
    #[inline]
    pub fn id_at(&self, index: u32) -> Option<Id> {
        let place = self.place(index)?;
        place.value.as_ref().map(|_| Id { index, generation: place.generation })
    }

    fn place(&self, index: u32) -> Option<&Place<T>> {
        self.chunks.get((index / CHUNK) as usize)?.places.as_ref()?.get((index % CHUNK) as usize)
    }

    /// All of them, by index.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        let places = |chunk: usize| self.chunks[chunk].places.iter().flatten();
        (0..self.chunks.len()).flat_map(move |chunk| {
            places(chunk).zip(chunk as u32 * CHUNK..).filter_map(|(place, index)| {
                Some((Id { index, generation: place.generation }, place.value.as_ref()?))
            })
        })
    }

    /// Gives back the memory of chunks that have no value. Names that were given stay nobody's.
    pub fn rest(&mut self) {
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.filled == 0) {
            let Some(places) = chunk.places.take() else { continue };
            // One that wrapped is behind the others: it is as new as any then.
            chunk.generation = places.iter().map(|place| place.generation).max().unwrap_or_default();
        }
    }
}
