//! The first process. It starts the others, does a share of the work, measures, and reports.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use shared::Masters;
use uuid::Uuid;

use crate::clock;
use crate::fleet::Fleet;
use crate::ledger::Ledger;
use crate::load::Load;
use crate::options::Options;
use crate::progress::Progress;
use crate::report::Report;

/// The time between two updates of the bar.
const TICK: Duration = Duration::from_millis(100);

pub fn run(options: &Options) -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    // The parent connects first, so that an error of the options or the server is printed only once.
    let locks = options.connect()?;
    let mut masters = Masters::connect(&options.topology)?;
    let mut commands = || masters.figures().map(|figures| figures.commands);

    let run = Uuid::new_v4().simple().to_string();
    let (ledger, home) = Ledger::create(&run, options.processes, options.names)?;
    let ledger = Arc::new(ledger);
    let mut fleet = Fleet::start(options.processes, &run)?;
    let load = Load::prepare(options, &locks, ledger.clone(), &run, 0)?;
    while !fleet.is_ready() {
        if let Some(death) = fleet.wait(TICK) {
            eprintln!("stress: {death}");
        }
    }
    // All living processes have the ledger open.
    drop(home);

    let before = commands();
    let start = clock::now();
    let progress = Progress::new(options, start);
    fleet.go(load, start);
    while !fleet.is_over() {
        progress.show(&ledger);
        if let Some(death) = fleet.wait(TICK) {
            progress.say(&death);
        }
    }
    let after = commands();
    progress.clear();

    let commands = commands_between(before, after);
    let report = Report::new(options, &fleet, &ledger, start, commands)?;
    if options.json {
        println!("{}", report.to_json());
    } else {
        print!("{report}");
    }
    Ok(ExitCode::from(u8::from(!report.is_sound())))
}

/// Returns `None` if a master does not count, or was restarted or replaced meanwhile.
fn commands_between(before: shared::Result<u64>, after: shared::Result<u64>) -> Option<u64> {
    match (before, after) {
        (Ok(before), Ok(after)) => after.checked_sub(before),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("stress: a master does not count its commands: {error:#}");
            None
        }
    }
}
