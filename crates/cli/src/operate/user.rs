//! `--user NAME[:GROUP]`: root binds the sockets, and then this process is root no more.
//!
//! It happens before there is a second thread, and before any file of others is opened: what is opened again at SIGHUP could be
//! opened the first time, too. (nix has these calls as the C library makes them, for all threads; rustix's are for one.)

use anyhow::{Context, ensure};
use nix::unistd::{
    Gid, Group, Uid, User as Entry, getgrouplist, getgroups, getresgid, getresuid, seteuid, setgroups,
    setresgid, setresuid,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::path::Path;
use std::str::FromStr;

/// As written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    name: String,
    group: Option<String>,
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Asked, String> {
        let (name, group) = match text.split_once(':') {
            Some((name, group)) => (name, Some(group)),
            None => (text, None),
        };
        if name.is_empty() || group.is_some_and(|group| group.is_empty() || group.contains(':')) {
            return Err("write NAME or NAME:GROUP, each a name or a number".into());
        }
        Ok(Asked { name: name.to_owned(), group: group.map(str::to_owned) })
    }
}

/// Why root may not do that.
const LACKS: &str = "this process lacks CAP_CHOWN, CAP_SETUID or CAP_SETGID, or is in a user namespace that does not have that user \
                     or group";

/// Whom this process becomes.
#[derive(Debug)]
pub struct User {
    name: String,
    uid: Uid,
    gid: Gid,
    /// All of them, `gid` included.
    groups: Vec<Gid>,
}

impl User {
    /// Looks up who is asked for.
    ///
    /// # Errors
    ///
    /// This process is not root, or there is no such user or group.
    pub fn find(asked: &Asked) -> anyhow::Result<User> {
        let own = Uid::effective();
        ensure!(
            own.is_root(),
            "--user gives up root, and this process runs as user {own} already: leave it out"
        );
        let Asked { name, group } = asked;
        let number = |text: &str| text.parse::<u32>().ok();
        let unreadable = "--user: cannot read the users and groups of this system";
        let entry = match (Entry::from_name(name).context(unreadable)?, number(name)) {
            (None, Some(uid)) => Entry::from_uid(Uid::from_raw(uid)).context(unreadable)?,
            (entry, _) => entry,
        };
        let uid = entry.as_ref().map(|entry| entry.uid).or(number(name).map(Uid::from_raw));
        let uid = uid.with_context(|| {
            format!("--user: there is no user {name:?}: make one (useradd --system {name}) or name another")
        })?;
        // The last number means "as it is" (setresuid(2)).
        ensure!(
            !uid.is_root() && uid.as_raw() != u32::MAX,
            "--user {name} gives up nothing: name another user"
        );
        let gid = match group {
            Some(group) => {
                let found = Group::from_name(group).context(unreadable)?.map(|group| group.gid);
                found.or(number(group).map(Gid::from_raw)).with_context(|| {
                    format!("--user: there is no group {group:?}: make one (groupadd --system {group}) or name another")
                })?
            }
            None => entry.as_ref().map(|entry| entry.gid).with_context(|| {
                format!(
                    "--user: nothing is known of user {name}, so it has no group: write --user {name}:GROUP"
                )
            })?,
        };
        ensure!(gid.as_raw() != u32::MAX, "--user: {} is no group's number", gid);
        let groups = match &entry {
            Some(entry) => getgrouplist(&CString::new(entry.name.as_str())?, gid).context(unreadable)?,
            None => vec![gid],
        };
        Ok(User { name: entry.map_or_else(|| name.clone(), |entry| entry.name), uid, gid, groups })
    }

    pub fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// Gives it a file that root has just made.
    pub fn own(&self, path: &Path) -> anyhow::Result<()> {
        std::os::unix::fs::lchown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
            .with_context(|| format!("--user: cannot give {} to {}: {LACKS}", path.display(), self.name))
    }

    /// Becomes that user, for good, and says whom.
    ///
    /// # Errors
    ///
    /// The kernel refuses a part of it, or root would not be out of reach.
    pub fn enter(&self) -> anyhow::Result<String> {
        let cannot = || format!("--user: cannot become {}: {LACKS}", self.name);
        setgroups(&self.groups).with_context(cannot)?;
        setresgid(self.gid, self.gid, self.gid).with_context(cannot)?;
        setresuid(self.uid, self.uid, self.uid).with_context(cannot)?;
        // It is believed when it is seen.
        let (users, groups) = (getresuid()?, getresgid()?);
        let all = |groups: Vec<Gid>| groups.into_iter().map(Gid::as_raw).collect::<BTreeSet<u32>>();
        let (mut here, mut should) = (all(getgroups()?), all(self.groups.clone()));
        // Whether the effective one is among them is not said (getgroups(2)).
        here.insert(self.gid.as_raw());
        should.insert(self.gid.as_raw());
        let became = [users.real, users.effective, users.saved].iter().all(|uid| *uid == self.uid)
            && [groups.real, groups.effective, groups.saved].iter().all(|gid| *gid == self.gid)
            && here == should;
        ensure!(became, "--user: did not become {}: {users:?}, {groups:?}, groups {here:?}", self.name);
        let root = Uid::from_raw(0);
        let regained = setresuid(root, root, root).is_ok() || seteuid(root).is_ok();
        ensure!(!regained, "--user: root could be had again, so this program does not go on");
        let left = rustix::thread::capabilities(None)?;
        ensure!(
            left.effective.is_empty() && left.permitted.is_empty(),
            "--user: capabilities of root stay ({left:?}), since a bit of this process says so (SECBIT_NO_SETUID_FIXUP, \
             capabilities(7)): start it without"
        );
        // No program that it would start regains anything either.
        rustix::thread::set_no_new_privs(true)?;
        // With its user, a process loses what its user's other programs may see of it in /proc (prctl(2), PR_SET_DUMPABLE): `ss`,
        // `top`, debuggers. It has read nothing yet that its user may not know.
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        Ok(format!("{} ({}:{})", self.name, self.uid, self.gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read() {
        let asked = |name: &str, group: Option<&str>| {
            Ok(Asked { name: name.into(), group: group.map(str::to_owned) })
        };
        assert_eq!("web".parse(), asked("web", None));
        assert_eq!("web:www".parse(), asked("web", Some("www")));
        assert_eq!("33:44".parse(), asked("33", Some("44")));
        for text in ["", ":", "web:", ":www", "a:b:c"] {
            assert!(text.parse::<Asked>().unwrap_err().contains("NAME:GROUP"), "{text}");
        }
    }
}
