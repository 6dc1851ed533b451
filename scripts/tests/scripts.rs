//! Every script of `scripts/tcp`, on ours and on the kernel, over IPv4 and IPv6.
//!
//! What the kernel does not do as its script says is on a fixed list here, with the reason beside the script itself. A script that is there
//! and passes is a failure, as is one that fails and isn't there.

use libtest_mimic::{Arguments, Failed, Trial};
use onecopy_scripts::{Family, Outcome, defaults_for_packetdrill, on_kernel, on_ours, parse};
use std::path::{Path, PathBuf};

/// Scripts that say `// kernel: differs: REASON`.
const KERNEL_DIFFERS: [&str; 3] =
    ["hystart-plus-plus-conservative", "hystart-plus-plus-jitter", "hystart-plus-plus-leaves"];

fn main() {
    let mut args = Arguments::from_args();
    // On the kernel most time is spent asleep.
    args.test_threads.get_or_insert(16);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(folder.join("tcp"))
        .expect("scripts/tcp")
        .map(|entry| entry.expect("an entry of scripts/tcp").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pkt"))
        .collect();
    scripts.sort();
    let mut trials = vec![
        Trial::test("the_list_of_what_the_kernel_does_otherwise", {
            let scripts = scripts.clone();
            move || list_is_right(&scripts)
        }),
        Trial::test("defaults_sh", {
            let file = folder.join("defaults.sh");
            move || defaults_are_right(&file)
        }),
    ];
    for path in &scripts {
        let name = name(path);
        for (family, suffix) in [(Family::V4, ""), (Family::V6, "::ipv6")] {
            if read(path).is_ok_and(|script| !script.is_for(family)) {
                continue;
            }
            let (ours, kernel) = (path.clone(), path.clone());
            trials.push(Trial::test(format!("ours::{name}{suffix}"), move || {
                Ok(on_ours(&read(&ours)?, family)?)
            }));
            trials
                .push(Trial::test(format!("kernel::{name}{suffix}"), move || check_kernel(&kernel, family)));
        }
    }
    libtest_mimic::run(&args, trials).exit();
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn read(path: &Path) -> Result<onecopy_scripts::Script, Failed> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let file = format!("scripts/tcp/{}.pkt", name(path));
    let script = parse(&file, &text)?;
    if script.header().lines().count() < 2 || !script.header().contains("RFC") {
        return Err(format!("{file}: say at its beginning which RFC, which state, and what it shows").into());
    }
    Ok(script)
}

fn check_kernel(path: &Path, family: Family) -> Result<(), Failed> {
    let script = read(path)?;
    match (on_kernel(&script, family), script.kernel_differs()) {
        (Outcome::Passed, None) | (Outcome::Failed(_), Some(_)) => Ok(()),
        (Outcome::Lacking(what), _) => {
            println!("lacking: {what}, for {} on the kernel", script.file());
            Ok(())
        }
        (Outcome::Failed(why), None) | (Outcome::Broken(why), _) => Err(why.into()),
        (Outcome::Passed, Some(_)) => {
            Err(format!("{}: the kernel passes it; take its line 'kernel: differs' out", script.file())
                .into())
        }
    }
}

fn list_is_right(scripts: &[PathBuf]) -> Result<(), Failed> {
    let mut differ = Vec::new();
    for path in scripts {
        if let Some(why) = read(path)?.kernel_differs() {
            if why.len() < 10 {
                return Err(format!("{}: say why the kernel differs", path.display()).into());
            }
            differ.push(name(path));
        }
    }
    let listed: Vec<String> = KERNEL_DIFFERS.iter().map(ToString::to_string).collect();
    if differ == listed { Ok(()) } else { Err(format!("{differ:?} differ, {listed:?} are listed").into()) }
}

fn defaults_are_right(file: &Path) -> Result<(), Failed> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    if text == defaults_for_packetdrill() {
        return Ok(());
    }
    Err(format!("{} is to be:\n{}", file.display(), defaults_for_packetdrill()).into())
}
