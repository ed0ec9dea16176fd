//! The methods of handles, by macros: those that acquire a lock, the name, the token, and the setters of the options.

/// Defines the six methods of one way to acquire a lock, from an expression that acquires a guard with a limit of the
/// wait.
/// [`Mutex`](crate::Mutex) has them written out, and documents them in full. The other kinds have them by this macro, under
/// their own names, with links to those of the mutex.
///
/// `what` is what a caller acquires, and `lock` a variable for the examples. `errors` ends the sentence on the errors:
/// it lists those that the mutex does not have. A number of units comes after the time, with its value in the examples.
macro_rules! ways {
    (
        $(#[$blocks:meta])*
        $handle:ident => $guard:ident:
            $wait:ident, $at_once:ident, $within:ident, $before:ident, $with:ident, $run:ident;
        what: $what:literal, lock: $lock:literal, errors: $errors:literal;
        leases: $leases:expr => $lease:ty;
        |$self:ident, $limit:ident $(, $n:ident: $number:ty = $value:literal)?| $acquire:expr
    ) => {
        impl $handle {
            $(#[$blocks])*
            ///
            /// # Errors
            ///
            #[doc = concat!("As [`Mutex::lock`](crate::Mutex::lock)", $errors)]
            ///
            /// # Example
            ///
            /// ```no_run
            #[doc = concat!("# fn f(", $lock, ": &leasehold::", stringify!($handle), ") -> leasehold::Result<()> {")]
            #[doc = concat!("let guard = ", $lock, ".", stringify!($wait), "(" $(, $value)?, ")?;")]
            /// // … the work …
            /// guard.release()?;
            /// # Ok(()) }
            /// ```
            pub fn $wait(&$self $(, $n: $number)?) -> Result<$guard> {
                let $limit = $crate::net::deadline::Wait::Forever;
                $crate::lock::handle::without_limit($acquire)
            }

            #[doc = concat!("Acquires ", $what, " if that needs no wait. Returns `None` if it needs one.")]
            ///
            /// Blocks as [`Mutex::try_lock`](crate::Mutex::try_lock) does.
            ///
            /// # Errors
            ///
            #[doc = concat!("As [`", stringify!($wait), "`](Self::", stringify!($wait), "). No error is retried.")]
            ///
            /// # Example
            ///
            /// ```no_run
            #[doc = concat!("# fn f(", $lock, ": &leasehold::", stringify!($handle), ") -> leasehold::Result<()> {")]
            #[doc = concat!("match ", $lock, ".", stringify!($at_once), "(" $(, $value)?, ")? {")]
            ///     Some(guard) => guard.release()?, // after the work
            ///     None => println!("others are at work"),
            /// }
            /// # Ok(()) }
            /// ```
            pub fn $at_once(&$self $(, $n: $number)?) -> Result<Option<$guard>> {
                $self.$within($($n,)? Duration::ZERO)
            }

            #[doc = concat!("Acquires ", $what, " within `wait`. Returns `None` if that was not possible at")]
            /// Redis's last reply.
            ///
            /// Blocks as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) does.
            ///
            /// # Errors
            ///
            #[doc = concat!("As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for)", $errors)]
            ///
            /// # Example
            ///
            /// ```no_run
            /// # use std::time::Duration;
            #[doc = concat!("# fn f(", $lock, ": &leasehold::", stringify!($handle), ") -> leasehold::Result<()> {")]
            /// let wait = Duration::from_secs(2);
            #[doc = concat!("let granted = ", $lock, ".", stringify!($within), "(", $($value, ", ",)? "wait)?;")]
            /// if let Some(guard) = granted {
            ///     // … the work …
            ///     guard.release()?;
            /// }
            /// # Ok(()) }
            /// ```
            pub fn $within(&$self $(, $n: $number)?, wait: Duration) -> Result<Option<$guard>> {
                let $limit = $self.handle.wait_of(wait);
                $crate::lock::handle::within_limit($acquire)
            }

            #[doc = concat!("Acquires ", $what, " before `deadline`. Returns `None` if that was not possible at")]
            /// Redis's last reply.
            ///
            /// Blocks as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) does.
            ///
            /// # Errors
            ///
            #[doc = concat!("As [`", stringify!($within), "`](Self::", stringify!($within), ").")]
            ///
            /// # Example
            ///
            /// ```no_run
            /// # use std::time::{Duration, Instant};
            #[doc = concat!("# fn f(", $lock, ": &leasehold::", stringify!($handle), ") -> leasehold::Result<()> {")]
            /// let deadline = Instant::now() + Duration::from_secs(2);
            #[doc = concat!("let guard = ", $lock, ".", stringify!($before), "(", $($value, ", ",)? "deadline)?;")]
            /// # drop(guard);
            /// # Ok(()) }
            /// ```
            pub fn $before(&$self $(, $n: $number)?, deadline: Instant) -> Result<Option<$guard>> {
                $self.$within($($n,)? $crate::sys::time::left_until(deadline))
            }

            #[doc = concat!("Acquires ", $what, " within `wait`, runs `f`, and releases the guard.")]
            ///
            /// Returns what [`Mutex::with`](crate::Mutex::with) returns, and blocks as it does.
            ///
            /// # Errors
            ///
            #[doc = concat!("As [`Mutex::with`](crate::Mutex::with)", $errors)]
            ///
            /// # Example
            ///
            /// ```no_run
            /// # use std::time::Duration;
            #[doc = concat!("# fn f(", $lock, ": &leasehold::", stringify!($handle), ") -> leasehold::Result<()> {")]
            /// # fn work() -> u32 { 7 }
            /// let wait = Duration::from_secs(2);
            #[doc = concat!("let done = ", $lock, ".", stringify!($with), "(", $($value, ", ",)? "wait, |_| work())?;")]
            /// println!("{done} done");
            /// # Ok(()) }
            /// ```
            pub fn $with<T>(&$self $(, $n: $number)?, wait: Duration, f: impl FnOnce(&$lease) -> T) -> Result<T> {
                $self.$run($($n,)? wait, f)?.into_result()
            }

            #[doc = concat!("Acquires ", $what, " within `wait`, runs `f`, and releases the guard. Returns the result")]
            /// of `f` even if the lock was lost meanwhile.
            ///
            /// Returns what [`Mutex::run`](crate::Mutex::run) returns, and blocks as it does.
            ///
            /// # Errors
            ///
            #[doc = concat!("As [`Mutex::run`](crate::Mutex::run)", $errors)]
            ///
            /// # Example
            ///
            /// ```no_run
            /// # use std::time::Duration;
            #[doc = concat!("# fn f(", $lock, ": &leasehold::", stringify!($handle), ") -> leasehold::Result<()> {")]
            /// # fn work() -> u32 { 7 }
            /// let wait = Duration::from_secs(2);
            #[doc = concat!("let ran = ", $lock, ".", stringify!($run), "(", $($value, ", ",)? "wait, |_| work())?;")]
            /// println!("{} done, lost: {:?}", ran.value, ran.lost);
            /// # Ok(()) }
            /// ```
            pub fn $run<T>(&$self $(, $n: $number)?, wait: Duration, f: impl FnOnce(&$lease) -> T) -> Result<Ran<T>> {
                $self.handle.run(wait, |$limit| $acquire, $leases, f)
            }
        }
    };
}

/// Defines the methods that the handle of every kind has, also that of the rate limiter.
macro_rules! basics {
    ($handle:ident) => {
        impl $handle {
            /// Returns the name, as it was given. A [`MultiLock`](crate::MultiLock) joins its names with ` + `: the first
            /// 200 bytes or so of them, and the number of the others.
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
        $crate::lock::methods::basics!($handle);
        $crate::lock::methods::setters! { $handle:
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

pub(crate) use {basics, options, setters, ways};
