//! A maintainer who makes a release. The maintainer has keys, a file with names, and a clone of this commit.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

const NAMES: &str = "REPOSITORY=https://forge.test/portreeve/portreeve\nREGISTRY=registry.test/portreeve\n\
                     SITE=https://site.test/\nMAINTAINERS=@portreeve/maintainers\n";

pub struct Maker(TempDir);

impl Maker {
    pub fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let maker = Self(folder);
        maker.write("names", NAMES);
        maker
    }

    pub fn with_keys() -> Self {
        let maker = Self::new();
        maker.run(&program("cosign"), &["generate-key-pair"]);
        maker.run("minisign", &["-G", "-W", "-p", "minisign.pub", "-s", "minisign.key"]);
        maker
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.0.path().join(name), text).expect("a file");
        self.path(name)
    }

    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = command(program, arguments, self.0.path()).env("COSIGN_PASSWORD", "").output();
        successful(program, &output.unwrap_or_else(|error| panic!("{program}: {error}")))
    }

    pub fn clone_of_this(&self, name: &str) -> PathBuf {
        self.run("git", &["clone", "--quiet", env!("CARGO_MANIFEST_DIR"), name]);
        self.0.path().join(name)
    }

    pub fn names(&self, clone: &Path, names: &[&str]) -> Output {
        command(clone.join("tools/names").to_str().expect("UTF-8"), names, clone).output().expect("bash")
    }

    /// The new commit has the time of its parent commit, so the commits of two clones are equal.
    pub fn clone_and(&self, name: &str, files: &[(&str, &str)]) -> PathBuf {
        let clone = self.clone_of_this(name);
        let git = |words: &[&str], date: &str| {
            let mut git = command("git", words, &clone);
            successful(
                "git",
                &git.envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_DATE"), date))).output().expect("git"),
            )
        };
        let names: Vec<&str> = NAMES.lines().filter_map(|line| Some(line.split_once('=')?.1)).collect();
        successful("tools/names", &self.names(&clone, &names));
        for (file, text) in files {
            fs::write(clone.join(file), text).expect("a file");
            git(&["add", file], "");
        }
        let date = git(&["log", "-1", "--format=%cI"], "");
        git(
            &["-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "--all", "--message=x"],
            date.trim(),
        );
        clone
    }

    pub fn clone_with_keys(&self, name: &str) -> PathBuf {
        let keys = ["cosign.pub", "minisign.pub"].map(|it| (it, fs::read_to_string(self.path(it)).expect("a key")));
        self.clone_and(name, &keys.each_ref().map(|(file, text)| (*file, &**text)))
    }

    pub fn release(&self, clone: &Path, version: &str, more: &[(&str, &str)]) -> Output {
        let [cosign, minisign, names] = ["cosign.key", "minisign.key", "names"].map(|name| self.path(name));
        let keys = [("COSIGN_KEY", &*cosign), ("MINISIGN_KEY", &minisign), ("NAMES", &names), ("COSIGN_PASSWORD", "")];
        let program = clone.join("tools/release");
        let with_mask = "umask \"${MASK:-022}\"; exec \"$0\" \"$1\"";
        let mut release = command("bash", &["-c", with_mask, program.to_str().expect("UTF-8"), version], clone);
        release.envs(keys).envs(more.iter().copied()).output().expect("bash")
    }

    /// A script that replaces cargo: instead of compiling, it writes a small file. For amd64, the script can copy a
    /// real program.
    pub fn cargo(&self, amd64: Option<&Path>) -> String {
        let amd64 = amd64.map_or_else(String::new, |path| {
            format!("[ \"$target\" != x86_64-unknown-linux-musl ] || cp '{}' \"$made\"\n", path.display())
        });
        let text = format!(
            "#!/bin/bash\nset -eu\n\
             [ \"$1 $2\" = 'auditable build' ] || exec '{}' \"$@\"\n\
             [ -z \"${{COSIGN_PASSWORD+set}}\" ] || {{ echo >&2 'a build script can read the password of a key'; exit 1; }}\n\
             for word; do case \"$word\" in --target=*) target=\"${{word#--target=}}\" ;; esac; done\n\
             made=\"target/$target/release/portreeve\"\n\
             mkdir -p \"${{made%/*}}\"\n\
             printf '\\177ELF of %s' \"$target\" > \"$made\"\n\
             {amd64}chmod 755 \"$made\"\n",
            env!("CARGO")
        );
        self.script("cargo", &text)
    }

    pub fn script(&self, name: &str, text: &str) -> String {
        let path = self.write(name, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        path
    }
}

#[track_caller]
pub fn program(name: &str) -> String {
    let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/install");
    let mut find = command(tools, &["--find", name], Path::new("/"));
    successful("tools/install", &find.output().expect("bash")).trim().to_owned()
}

pub fn command(program: &str, arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    command
}

#[track_caller]
pub fn successful(program: &str, output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{program}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}
