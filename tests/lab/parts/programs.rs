//! Finds programs: in `$KUBEBUILDER_ASSETS`, in the `PATH`, or in the folder of `tools/install`, in this order.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// The list of the programs that `tools/install` installs. A row has the set, the kind and the name of a program, and
/// the parameters of the kind.
const VERSIONS: &str = include_str!("../../../tools/versions");

/// The path of a program.
///
/// # Panics
/// Panics if no folder has the program: a test without the program would show nothing.
pub fn find(program: &str) -> PathBuf {
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = assets.into_iter().chain(env::split_paths(&path)).chain(built(program)).collect();
    places
        .iter()
        .map(|place| place.join(program))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("no {program} in {places:?}: {}", advice(program)))
}

/// The folder in which `tools/install` keeps programs.
pub fn cache() -> PathBuf {
    let of_home = || PathBuf::from(env::var_os("HOME").expect("a home directory")).join(".cache");
    let cache = env::var_os("XDG_CACHE_HOME").filter(|it| !it.is_empty()).map_or_else(of_home, PathBuf::from);
    cache.join("portreeve")
}

/// The advice to a user who runs a test without `make`. `make` would install the program first.
fn advice(program: &str) -> String {
    match row(program) {
        Some(row) => format!("run `tools/install {}`", row[0]),
        None => "tools/versions does not list it".to_owned(),
    }
}

fn row(program: &str) -> Option<Vec<&'static str>> {
    let mut rows = VERSIONS.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|row| row.get(2) == Some(&program))
}

/// The folder in which `tools/install` puts this program. The folder's name is the version in the program's `go.mod`.
fn built(program: &str) -> Option<PathBuf> {
    let row = row(program).filter(|row| ["go", "file"].contains(&row[1]))?;
    let (place, module) = row[5].split_once('/').expect("a place, and a module");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(row[3]).join("go.mod");
    let modules = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Some(cache().join(place).join(pinned(&modules, module)))
}

fn pinned<'a>(modules: &'a str, module: &str) -> &'a str {
    let mut lines = modules.lines().map(|line| line.trim().trim_start_matches("require "));
    let line = lines.find_map(|line| line.strip_prefix(module)?.strip_prefix(' '));
    line.and_then(|rest| rest.split(' ').next()).unwrap_or_else(|| panic!("no go.mod requires {module}"))
}
