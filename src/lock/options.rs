//! The methods that all handles have besides those that acquire: the name, the token, and the setters of the options.

/// Defines the methods that the handle of every kind has, also that of the rate limiter.
macro_rules! basics {
    ($handle:ident) => {
        impl $handle {
            /// Returns the name, as it was given. A [`MultiLock`](crate::MultiLock) joins its names with ` + `.
            ///
            /// # Example
            ///
            /// ```no_run
            #[doc = concat!("# fn example(handle: &leasehold::", stringify!($handle), ") {")]
            /// println!("{}", handle.name());
            /// # }
            /// ```
            #[must_use]
            pub fn name(&self) -> &str {
                self.handle.name()
            }

            /// Sets the token that ends blocked calls of this handle: see [`Cancel`](crate::Cancel). If the token is
            /// cancelled already, a call sends nothing and returns [`Error::Cancelled`](crate::Error::Cancelled). A
            /// second token replaces the first. Defaults to none.
            ///
            /// # Example
            ///
            /// ```no_run
            #[doc = concat!("# fn example(handle: leasehold::", stringify!($handle), ") {")]
            /// let stop = leasehold::Cancel::new();
            /// let handle = handle.cancel_with(&stop);
            /// # drop(handle); }
            /// ```
            #[must_use]
            pub fn cancel_with(mut self, cancel: &crate::cancel::Cancel) -> Self {
                self.handle.cancel = Some(cancel.clone());
                self
            }
        }
    };
}

/// Defines the methods that the handle of every kind of lock has. `Debug` also shows the given fields.
macro_rules! options {
    ($handle:ident $(, $field:ident)*) => {
        $crate::lock::options::basics!($handle);
        $crate::lock::options::setters! { $handle:
            lease(Duration), "how long Redis keeps the lock without a renewal", "Duration::from_secs(10)";
            renew(bool), "whether the lease is renewed for as long as the guard lives", "false";
            fencing(bool), "whether guards have fences", "false";
            max_hold(Option<Duration>), "how long one guard may hold the lock", "Some(Duration::from_secs(60))";
            min_hold(Duration), "how long the lock stays taken after a grant, even if its guard ends earlier",
                "Duration::from_secs(50)";
        }

        impl $handle {
            /// Sets the text that [`inspect`](crate::LockManager::inspect) shows with the holder. A thread of this process
            /// whose handle has another note gets the lock through Redis, not in memory. Defaults to the manager's: see
            /// [`Builder::note`](crate::Builder::note).
            ///
            /// # Example
            ///
            /// ```no_run
            #[doc = concat!("# fn example(lock: leasehold::", stringify!($handle), ") {")]
            /// let lock = lock.note("job 4711");
            /// # drop(lock); }
            /// ```
            #[must_use]
            pub fn note(mut self, note: impl Into<String>) -> Self {
                self.handle.note(&note.into());
                self
            }
        }

        impl std::fmt::Debug for $handle {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut debug = self.handle.debug(stringify!($handle), f);
                $(debug.field(stringify!($field), &self.$field);)*
                debug.finish_non_exhaustive()
            }
        }
    };
}

/// Defines the setters of options that the manager's builder has too. The builder documents each in full.
macro_rules! setters {
    ($handle:ident: $($option:ident($value:ty), $what:literal, $example:literal;)*) => {
        impl $handle {$(
            #[doc = concat!("Sets ", $what, ". Defaults to the manager's:")]
            #[doc = concat!("see [`Builder::", stringify!($option), "`](crate::Builder::", stringify!($option), ").")]
            ///
            /// # Example
            ///
            /// ```no_run
            /// # use std::time::Duration;
            #[doc = concat!("# fn example(lock: leasehold::", stringify!($handle), ") {")]
            #[doc = concat!("let lock = lock.", stringify!($option), "(", $example, ");")]
            /// # drop(lock); }
            /// ```
            #[must_use]
            pub fn $option(mut self, $option: $value) -> Self {
                self.handle.options.$option = $option;
                self
            }
        )*}
    };
}

pub(crate) use {basics, options, setters};
