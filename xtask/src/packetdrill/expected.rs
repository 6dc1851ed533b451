//! The scripts that are known to fail, each with the reason: packetdrill/expected.toml.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The file: one table, a script's path below the folder of scripts, or a folder with a slash at its end, and why it fails.
#[derive(Debug, Default, Deserialize)]
pub struct Expected {
    #[serde(default)]
    fails: BTreeMap<String, String>,
}

impl Expected {
    /// What the file says.
    pub fn read(path: &Path) -> Result<Expected> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Why `script` is expected to fail.
    pub fn reason(&self, script: &str) -> Option<&str> {
        let folders = script.match_indices('/').map(|(at, _)| &script[..=at]);
        std::iter::once(script).chain(folders).find_map(|name| self.fails.get(name)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_or_its_folder_has_a_reason() {
        let expected: Expected =
            toml::from_str("[fails]\n\"a/b/\" = \"folder\"\n\"a/b/c.pkt\" = \"own\"\n").unwrap();
        assert_eq!(expected.reason("a/b/c.pkt"), Some("own"));
        assert_eq!(expected.reason("a/b/d/e.pkt"), Some("folder"));
        assert_eq!(expected.reason("a/bc.pkt"), None);
    }

    #[test]
    fn the_file_can_be_read() {
        Expected::read(&crate::shell::root().join("packetdrill/expected.toml")).unwrap();
    }
}
