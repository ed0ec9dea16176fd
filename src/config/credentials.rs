//! A login that may change while a manager runs: from the program, or from a file.

use std::path::{Path, PathBuf};
use std::{fmt, fs, mem};

#[cfg(doc)]
use crate::error::Error;
use crate::panics::survived;
use crate::sys::{Arc, Mutex};

/// The login of a manager, if it may change while the manager runs: see [`Builder::credentials`](crate::Builder::credentials).
///
/// A closure that returns the user and the password is one too.
///
/// # Example
///
/// ```no_run
/// use leasehold::{Credentials, LockManager};
///
/// /// The secret that an agent on this machine keeps up to date.
/// struct Agent;
///
/// impl Credentials for Agent {
///     fn get(&self) -> (Option<String>, String) {
///         let secret = std::fs::read_to_string("/run/secrets/redis").unwrap_or_default();
///         (Some("orders".to_owned()), secret.trim().to_owned())
///     }
/// }
///
/// let locks = LockManager::single("redis://127.0.0.1/").credentials(Agent).build()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub trait Credentials: Send + Sync {
    /// Returns the user, and the password. Without a user, it is that of the URL or of
    /// [`Builder::username`](crate::Builder::username), or else the server's user `default`.
    ///
    /// Any thread that logs in calls it, several perhaps at the same time, and the login waits for it: so return what is at
    /// hand. If it panics, the login fails with [`Error::Unavailable`], and the next login asks again.
    fn get(&self) -> (Option<String>, String);
}

impl<F: Fn() -> (Option<String>, String) + Send + Sync> Credentials for F {
    fn get(&self) -> (Option<String>, String) {
        self()
    }
}

/// The user, if it is not that of the settings, and the password. Or why there is none now, in words.
type Login = Result<(Option<String>, String), String>;

/// The logins of a manager, from where they come.
pub(crate) struct Logins {
    source: Source,
    /// The last two passwords, because open connections may have the one before.
    given: Mutex<[String; 2]>,
}

enum Source {
    Program(Box<dyn Credentials>),
    /// The file of the password.
    File(PathBuf),
}

impl Logins {
    pub(crate) fn of_program(credentials: impl Credentials + 'static) -> Arc<Self> {
        Self::new(Source::Program(Box::new(credentials)))
    }

    pub(crate) fn of_file(path: PathBuf) -> Arc<Self> {
        Self::new(Source::File(path))
    }

    fn new(source: Source) -> Arc<Self> {
        Arc::new(Self {
            source,
            given: Mutex::default(),
        })
    }

    /// Reads the file, if there is one. Returns what is wrong with it.
    pub(crate) fn wrong(&self) -> Option<String> {
        match &self.source {
            Source::Program(_) => None,
            Source::File(path) => read(path).err(),
        }
    }

    /// Returns what the next login needs.
    pub(crate) fn next(&self) -> Login {
        let (user, password) = match &self.source {
            Source::Program(credentials) => survived(|| credentials.get())
                .ok_or_else(|| "the program's credentials panicked".to_owned())?,
            Source::File(path) => (None, read(path)?),
        };
        let mut given = self.given.lock();
        if given[0] != password {
            given[1] = mem::replace(&mut given[0], password.clone());
        }
        Ok((user, password))
    }

    /// Returns a text with `<password>` in place of the last passwords.
    pub(crate) fn hide(&self, text: String) -> String {
        let given = self.given.lock();
        let passwords = given.iter().filter(|password| !password.is_empty());
        passwords.fold(text, |text, password| text.replace(password, "<password>"))
    }
}

/// Reads a password from its file. An editor ends the line.
fn read(path: &Path) -> Result<String, String> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| format!("the password file {}: {error}", path.display()))?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    if password.is_empty() {
        return Err(format!("the password file {} is empty", path.display()));
    }
    Ok(password.to_owned())
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<credentials>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_login_asks_and_the_last_two_passwords_are_hidden() {
        let passwords = Mutex::new(vec!["", "third", "second", "second", "first"]);
        let logins = Logins::of_program(move || match passwords.lock().pop() {
            Some(password) => (Some("me".to_owned()), password.to_owned()),
            None => panic!("on purpose"),
        });
        let said = || logins.hide("first second third".to_owned());
        for (password, hidden) in [
            ("first", "<password> second third"),
            ("second", "<password> <password> third"),
            ("second", "<password> <password> third"),
            ("third", "first <password> <password>"),
            ("", "first second <password>"),
        ] {
            let (user, got) = logins.next().expect("it has one");
            assert_eq!((user.as_deref(), &*got), (Some("me"), password));
            assert_eq!(said(), hidden);
        }
        let panicked = logins.next().expect_err("it panics");
        assert!(panicked.contains("panicked"), "{panicked}");
        assert!(!format!("{logins:?}").contains("third"));
    }

    #[test]
    fn a_file_is_read_at_each_login_without_the_end_of_its_line() {
        let name = format!("leasehold-password-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let logins = Logins::of_file(path.clone());
        let refused = || {
            let said = logins.next().expect_err("there is none");
            assert_eq!(logins.wrong().as_ref(), Some(&said));
            said
        };
        assert!(refused().contains("No such file"));
        for (text, password) in [
            ("a", Some("a")),
            ("b c\n", Some("b c")),
            ("d\r\n", Some("d")),
            (" e \n\n", Some(" e \n")),
            ("", None),
            ("\n", None),
        ] {
            fs::write(&path, text).expect("a file");
            match password {
                None => assert!(refused().ends_with("is empty")),
                Some(password) => {
                    assert_eq!(logins.wrong(), None, "it has one");
                    let next = logins.next().expect("it has one");
                    assert_eq!(next, (None, password.to_owned()));
                }
            }
        }
        fs::remove_file(&path).ok();
    }
}
