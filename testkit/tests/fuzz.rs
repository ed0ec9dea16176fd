//! The seeds of the fuzz targets pass. `scripts/fuzz` makes up more input.

use std::fs;
use std::path::Path;
use std::str;

#[path = "../../fuzz/src/lib.rs"]
mod bodies;

/// Calls the body of a target as the target does.
fn run(target: &str, input: &[u8]) {
    let text = || str::from_utf8(input).expect("the seed is text");
    match target {
        "claims" => bodies::claims(text()),
        "messages" => bodies::messages(input),
        "names" => bodies::names(text()),
        "replies" => bodies::replies(input),
        "urls" => bodies::urls(text()),
        _ => panic!("this test does not know the target {target}"),
    }
}

#[test]
fn every_seed_passes_its_target() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    for file in fs::read_dir(fuzz.join("fuzz_targets")).expect("the targets") {
        let file = file.expect("a file").path();
        let target = file.file_stem().and_then(|stem| stem.to_str());
        let target = target.expect("a name");
        let seeds = fs::read_dir(fuzz.join("seeds").join(target)).expect("the seeds");
        let mut count = 0;
        for seed in seeds {
            let seed = seed.expect("a file").path();
            // A panic does not say which seed it is about.
            println!("{}", seed.display());
            run(target, &fs::read(seed).expect("it can be read"));
            count += 1;
        }
        assert!(count > 0, "no seed of {target}");
    }
}
