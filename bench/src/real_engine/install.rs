//! Installing from PyPI, and writing the model.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tracing::info;

const REQUIREMENTS: &str = include_str!("../../real-engine/requirements.txt");
const WRITE_MODEL: &str = include_str!("../../real-engine/write_model.py");
const SERVE: &str = include_str!("../../real-engine/serve.py");

/// The files that an engine is started from.
#[derive(Clone, Debug)]
pub struct Installed {
    pub python: PathBuf,
    pub server: PathBuf,
    pub model: PathBuf,
}

/// Installs into `dir` what is missing or older than this program; does nothing when all is there.
///
/// Needs `python3` with its venv module, and PyPI the first time.
pub fn install(dir: &Path) -> Result<Installed> {
    fs::create_dir_all(dir).with_context(|| format!("failed to make {}", dir.display()))?;
    // Tests of several processes may come here at once.
    let lock = File::create(dir.join("lock")).context("failed to make the lock file")?;
    lock.lock().context("failed to lock the folder")?;
    let python = dir.join("venv/bin/python");
    let (server, model) = (dir.join("serve.py"), dir.join("river.gguf"));
    let writer = dir.join("write_model.py");
    fs::write(&server, SERVE).with_context(|| format!("failed to write {}", server.display()))?;

    if !is_made_from(&dir.join("venv/made-from"), REQUIREMENTS) {
        info!(dir = %dir.display(), "installing llama.cpp from PyPI");
        let list = dir.join("requirements.txt");
        fs::write(&list, REQUIREMENTS).with_context(|| format!("failed to write {}", list.display()))?;
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(dir.join("venv")))?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&list))?;
        fs::write(dir.join("venv/made-from"), REQUIREMENTS).context("failed to note what was installed")?;
    }
    let recipe = format!("{REQUIREMENTS}{WRITE_MODEL}");
    if !is_made_from(&dir.join("river.made-from"), &recipe) || !model.is_file() {
        info!(model = %model.display(), "writing the model");
        fs::write(&writer, WRITE_MODEL).with_context(|| format!("failed to write {}", writer.display()))?;
        run(Command::new(&python).arg(&writer).arg(&model))?;
        fs::write(dir.join("river.made-from"), recipe).context("failed to note what was written")?;
    }
    Ok(Installed { python, server, model })
}

fn is_made_from(note: &Path, wanted: &str) -> bool {
    fs::read_to_string(note).is_ok_and(|found| found == wanted)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("failed to start {:?}", command.get_program()))?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{:?} {:?} ended with {}:\n{told}",
        command.get_program(),
        command.get_args(),
        output.status
    );
    Ok(())
}
