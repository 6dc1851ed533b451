//! `onecopy-conformance`: runs the suite, or renders its table.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use onecopy_conformance::hostile::{self, Role};
use onecopy_conformance::peer::Peer;
use onecopy_conformance::run::{self, Limits, Verdict};
use onecopy_conformance::skips::{Elsewhere, Skips};
use onecopy_conformance::{cases, impls, table};

/// Puts the conformance cases to every implementation.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Print the Markdown table instead of a line per answer
    #[arg(long)]
    markdown: bool,
    /// List the cases
    #[arg(long)]
    list: bool,
    /// Only cases whose name contains this
    filter: Option<String>,
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// Run one case on one implementation in this very process
    One {
        /// The case's name
        case: String,
        /// The implementation's name
        implementation: String,
        /// A folder for names; it must exist
        dir: PathBuf,
    },
    /// Tell one lie to a victim in this very process
    #[command(hide = true)]
    Misbehaviour {
        /// The lie's name
        misbehaviour: String,
        /// Who tells it: `client`, `server`, `joining-client` or `joining-server`
        role: String,
        /// A folder for names; it must exist
        dir: PathBuf,
    },
    /// Be the process that the kill test kills; standard output must be a file for its progress
    #[command(hide = true)]
    Peer(Peer),
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(Task::Peer(peer)) = &args.task {
        onecopy_conformance::peer::run(peer)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(Task::Misbehaviour { misbehaviour, role, .. }) = &args.task {
        let told = hostile::all()
            .into_iter()
            .find(|l| l.name == misbehaviour)
            .with_context(|| format!("no misbehaviour {misbehaviour}"))?;
        let role = Role::of(role).with_context(|| format!("no role {role}"))?;
        println!("{}", hostile::here(told, role).to_line());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(Task::One { case, implementation, dir }) = args.task {
        let case = cases::by_name(&case).with_context(|| format!("no case {case}; --list shows them"))?;
        let imp =
            impls::by_name(&implementation).with_context(|| format!("no implementation {implementation}"))?;
        println!("{}", run::here(case, imp, dir).to_line());
        return Ok(ExitCode::SUCCESS);
    }
    if args.list {
        for case in cases::all() {
            println!("{:40} {} ({})", case.name, case.rule, case.source.letter());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let skips = Skips::read()?;
    let exe = std::env::current_exe()?;
    let wanted = |name: &str| args.filter.as_ref().is_none_or(|f| name.contains(f.as_str()));
    let rows = table::rows(&exe, &skips, Limits::default(), |c| wanted(c.name));
    let elsewhere = Elsewhere::read()?;
    let mut wrong = [skips.problems(), elsewhere.problems()].concat();
    if args.markdown {
        let more = [table::deviations(&skips), table::elsewhere(&elsewhere), table::lies()];
        print!("{}{}", table::markdown(&rows), more.concat());
    }
    for (imp, seen, verdict) in rows
        .iter()
        .flat_map(|r| r.cells.iter().map(move |c| (r.case, c)))
        .map(|(case, c)| ((case.name, c.0.name()), &c.1, &c.2))
    {
        let (case, imp) = imp;
        if let Verdict::Wrong(why) = verdict {
            wrong.push(format!("{case} on {imp}: {why}"));
        }
        if !args.markdown {
            println!("{case:36} {imp:20} {verdict:?} {}", seen.to_line());
        }
    }
    for w in &wrong {
        eprintln!("wrong: {w}");
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
