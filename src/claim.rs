//! Claims: locks that stay in Redis, and that no guard holds.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::{Error, Result};
use crate::name::{self, LARGEST_FENCE};
use crate::owner;
use crate::sys::Arc;

/// The characters that a claim's text percent-encodes (RFC 3986): all but letters, digits and `-._:`. So the text has
/// no character with a special meaning in a shell, an environment variable or JSON.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b':');

/// A lock that no guard holds, between [`LockGuard::detach`](crate::LockGuard::detach) and
/// [`LockManager::adopt`](crate::LockManager::adopt). A program sends the claim to another thread, or as text to another
/// process. [`Once::claim`](crate::Once::claim), of a job's turn, has nothing to do with it.
///
/// The text is `<fence>/<owner>/<name>`, with owner and name percent-encoded. The fence of a guard without one is 0. It is
/// one line of printable ASCII without spaces or quotes, so it fits into an argument, an environment variable or JSON as
/// it is. Redis has the same data. But a process that has the text, and access to Redis, can take the lock.
///
/// # Example
///
/// ```
/// let text = "1700000000000000/lh1:00000000-0000-4000-8000-000000000000:worker/orders%2F42";
/// let claim: leasehold::Claim = text.parse()?;
/// assert_eq!((claim.name(), claim.fence()), ("orders/42", 1_700_000_000_000_000));
/// assert_eq!(claim.to_string(), text);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    name: Arc<str>,
    owner: Arc<str>,
    fence: u64,
}

impl Claim {
    pub(crate) fn new(name: Arc<str>, owner: Arc<str>, fence: u64) -> Self {
        Self { name, owner, fence }
    }

    /// Returns the name of the lock, without the manager's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the owner of the lock in Redis until the claim is adopted.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns the fence of the guard that was detached, which is 0 if it had none. The guard that adopts the claim has a
    /// larger one, or none.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [owner, name] =
            [&self.owner, &self.name].map(|part| utf8_percent_encode(part, ENCODED));
        write!(f, "{}/{owner}/{name}", self.fence)
    }
}

impl FromStr for Claim {
    type Err = Error;

    /// Reads the text that [`Display`](fmt::Display) writes. A claim has only one text, so any other form is an error.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`]: this is not the text of a claim.
    /// * [`Error::InvalidName`]: no lock can have this name.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |reason| Error::config("claim", reason);
        let mut parts = text.splitn(3, '/');
        let (Some(fence), Some(owner), Some(name)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid("not of the form fence/owner/name"));
        };
        let fence = fence.parse().ok();
        let Some(fence) = fence.filter(|fence| *fence <= LARGEST_FENCE) else {
            return Err(invalid("it does not begin with a fence"));
        };
        let decoded = |part| percent_decode_str(part).decode_utf8().ok();
        let owner = decoded(owner).filter(|owner| owner::label(owner).is_some());
        let Some(owner) = owner.map(Cow::into_owned) else {
            return Err(invalid("its owner was not written by leasehold"));
        };
        let Some(name) = decoded(name).map(Cow::into_owned) else {
            return Err(invalid("its name is not UTF-8"));
        };
        name::check_length(&name)?;
        let claim = Self::new(name.into(), owner.into(), fence);
        if claim.to_string() != text {
            return Err(invalid(
                "it differs from the text that leasehold writes for this claim",
            ));
        }
        Ok(claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWNER: &str = "lh1:67e55044-10b1-426f-9247-bb680e5fe0c8:h:1";

    fn parsed(text: &str) -> Result<Claim> {
        text.parse()
    }

    #[test]
    fn what_is_no_claim_is_refused_with_a_reason() {
        assert!(parsed(&format!("1/{OWNER}/n")).is_ok());
        let upper = OWNER.to_uppercase().replace("LH1", "lh1");
        for (text, reason) in [
            (String::new(), "form"),
            (format!("1/{OWNER}"), "form"),
            (format!("/{OWNER}/n"), "fence"),
            (format!("-1/{OWNER}/n"), "fence"),
            (format!("9007199254740992/{OWNER}/n"), "fence"),
            (format!("18446744073709551616/{OWNER}/n"), "fence"),
            (format!("01/{OWNER}/n"), "writes"),
            (format!("+1/{OWNER}/n"), "writes"),
            ("1/foreign/n".into(), "owner"),
            ("1/lh1:x:y/n".into(), "owner"),
            (format!("1/{OWNER}!/n"), "owner"),
            (format!("1/{OWNER}%21/n"), "owner"),
            (format!("1/{OWNER}%20/n"), "owner"),
            (
                format!("1/{OWNER}{}/n", "x".repeat(owner::MAX_TAIL)),
                "owner",
            ),
            (format!("1/{}/n", OWNER.replace("lh1", "lh2")), "owner"),
            (format!("1/{}/n", OWNER.replace('-', "")), "owner"),
            (format!("1/{upper}/n"), "owner"),
            (format!("1/{OWNER}/%ff"), "UTF-8"),
            (format!("1/{OWNER}/a b"), "writes"),
            (format!("1/{OWNER}/a/b"), "writes"),
            (format!("1/{OWNER}/%zz"), "writes"),
            (format!("1/{OWNER}/%2f"), "writes"),
            (format!("1/{OWNER}/n\n"), "writes"),
            (format!("1/{OWNER}/"), "empty"),
            (format!("1/{OWNER}/{}", "x".repeat(1025)), "1,024"),
        ] {
            let error = parsed(&text).expect_err(&text);
            assert!(error.to_string().contains(reason), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn its_text_is_plain_and_read_back(
            name in any::<String>().prop_filter("a name", |name| {
                !name.is_empty() && name.len() <= name::MAX_NAME
            }),
            label in "[!-~]{0,128}",
            fence in 1..=LARGEST_FENCE,
        ) {
            let label = label.replace(owner::MARK, "~");
            let owner = format!("lh1:{}:{label}", uuid::Uuid::new_v4());
            let claim = Claim::new(name.into(), owner.into(), fence);
            let text = claim.to_string();
            prop_assert!(text.bytes().all(|byte| {
                byte.is_ascii_alphanumeric() || b"-._:/%".contains(&byte)
            }), "{}", text);
            prop_assert_eq!(parsed(&text).expect("its own text"), claim);
        }

        #[test]
        fn no_text_makes_it_panic_and_each_claim_has_one(
            text in prop_oneof![
                any::<String>(),
                "[0-9]{0,20}/[!-~]{0,60}/[!-~]{0,9}",
                ("[0-9]{1,3}", "[!-~]{0,3}", ".{0,9}")
                    .prop_map(|(fence, label, name)| format!("{fence}/{OWNER}{label}/{name}")),
            ]
        ) {
            if let Ok(claim) = parsed(&text) {
                prop_assert_eq!(claim.to_string(), text);
            }
        }
    }
}
