//! What a service of systemd finds below `leasehold run`.

use std::fs;

use crate::support::Server;
use crate::work::{Work, start};

/// A program ignores its sockets and its watchdog if the variables name another process.
#[test]
fn the_variables_of_systemd_name_the_command_and_its_sockets_are_open() {
    let server = Server::start();
    let work = Work::new(&server.url());
    fs::write(work.dir.join("socket"), "from the socket\n").expect("the directory exists");
    let service = "export LISTEN_FDS=1 LISTEN_PID=$$ LISTEN_PIDFDID=1 WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=1; \
        exec 3<socket; exec \"$@\"";
    let script = r#"[ "$LISTEN_PID $WATCHDOG_PID" = "$$ $$" ] || exit 1
        [ "$LISTEN_FDS $SYSTEMD_EXEC_PID ${LISTEN_PIDFDID-none}" = "1 1 none" ] || exit 2
        cat <&3 >got"#;
    let service = ["sh", "-c", service, "sh"];
    let mut running = start(&mut work.run_by(&service, &[], script));
    assert_eq!(running.status(), 0);
    assert_eq!(work.text("got"), "from the socket");
}
