//! Counters with a name each.

/// Makes a struct of counters, of which each tells its name.
#[doc(hidden)]
#[macro_export]
macro_rules! counters {
    ($(#[$about:meta])* pub struct $Stats:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $Stats { $($(#[$doc])* pub $name: u64,)* }

        impl $Stats {
            /// Each with its name.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}
