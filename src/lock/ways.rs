//! The six methods by which a caller acquires a lock. [`Mutex`](crate::Mutex) has them written out, and documents them
//! in full. The other kinds have them by the macro of this module, under their own names, with links to those of the
//! mutex.

/// Defines the six methods of one way to acquire a lock, from an expression that acquires a guard until a time.
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
        |$self:ident, $until:ident $(, $n:ident: $number:ty = $value:literal)?| $acquire:expr
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
                let $until = Some($crate::sys::Time::NEVER);
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
                let $until = $self.handle.until(wait);
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
                $self.handle.run(wait, |$until| $acquire, $leases, f)
            }
        }
    };
}

pub(crate) use ways;
