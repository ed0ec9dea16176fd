//! The answers of a sentinel. It sends its messages by `PUBLISH`.

use super::arguments::{Arguments, CommandError};
use super::replication::WatchedMaster;
use super::resp::Resp;
use super::state::ServerState;

/// `SENTINEL GET-MASTER-ADDR-BY-NAME name`, and `SENTINEL MASTER name` with the fields that clients of locks read.
pub(super) fn sentinel(
    server: &mut ServerState,
    _: u64,
    arguments: &Arguments<'_>,
) -> Result<Resp, CommandError> {
    let Some(watched) = &server.watched else {
        return Err(CommandError::new("ERR unknown command 'sentinel'"));
    };
    let asked = arguments.from(2).first().map(Vec::as_slice);
    let is_watched = asked == Some(watched.name.as_bytes());
    match (arguments.option(1).as_str(), arguments.len()) {
        ("GET-MASTER-ADDR-BY-NAME", 3) if !is_watched => Ok(Resp::NilArray),
        ("GET-MASTER-ADDR-BY-NAME", 3) => {
            let (host, port) = &watched.address;
            let parts = [host.clone(), port.to_string()];
            Ok(Resp::Array(parts.map(Resp::bulk).into()))
        }
        ("MASTER", 3) if !is_watched => Err(CommandError::new("ERR No such master with that name")),
        ("MASTER", 3) => {
            let (host, port) = &watched.reported;
            let fields = [
                ("name", watched.name.clone()),
                ("ip", host.clone()),
                ("port", port.to_string()),
                ("config-epoch", watched.config_epoch.to_string()),
            ];
            let parts = fields.map(|(name, value)| [Resp::bulk(name), Resp::bulk(value)]);
            Ok(Resp::Array(parts.into_iter().flatten().collect()))
        }
        _ => Err(CommandError::unknown_subcommand(arguments)),
    }
}

impl ServerState {
    /// Makes the server a sentinel of this master.
    pub fn watch(&mut self, watched: WatchedMaster) {
        self.watched = Some(watched);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::TestClient;

    #[test]
    fn a_sentinel_names_the_new_address_and_may_report_the_old_one() {
        let mut sentinel = TestClient::new();
        assert!(
            sentinel
                .ask("SENTINEL MASTER mine")
                .starts_with("-ERR unknown command")
        );
        sentinel.server.state().watch(WatchedMaster {
            name: "mine".into(),
            address: ("new".into(), 2),
            reported: ("old".into(), 1),
            config_epoch: 7,
        });
        let address = sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME mine");
        assert_eq!(address, "*2 $3 new $1 2");
        let report = sentinel.ask("SENTINEL MASTER mine");
        assert!(report.contains("$2 ip $3 old"), "{report}");
        assert!(report.contains("$12 config-epoch $1 7"), "{report}");
        let unknown = sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME other");
        assert_eq!(unknown, "*-1");
        assert!(
            sentinel
                .ask("SENTINEL MASTER other")
                .starts_with("-ERR No such master with that name")
        );
    }
}
