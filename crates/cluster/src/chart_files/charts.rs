//! The charts below a folder, by the name that each gives itself. The folder of a chart may be called otherwise.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    input::{Accepted, Input},
    yaml_options,
};

/// The folder of a chart that has the charts which are parts of it.
const INNER: &str = "charts";
/// The file that makes a folder a chart.
const CHART: &str = "Chart.yaml";
/// The most files and folders that are looked at.
const MOST: usize = 100_000;
/// The deepest folder that is looked into.
const DEEPEST: usize = 32;
/// The longest `Chart.yaml`, and how long all are together, in bytes.
const LONGEST: u64 = 1 << 20;
const LONGEST_TOGETHER: u64 = 64 << 20;

/// The most charts of one name that are compared, and of charts whose name is not known.
const MOST_OF_A_NAME: usize = 64;

/// Folders of charts, from the root on.
#[derive(Debug, Default)]
pub(super) struct Charts {
    by_name: BTreeMap<String, Vec<PathBuf>>,
    all: BTreeSet<PathBuf>,
    /// Those whose name is not known. Each may be any.
    nameless: Vec<PathBuf>,
    /// Those that lie packed beside others, or under another name, which helm decides.
    mixed: BTreeSet<PathBuf>,
}

/// What of a `Chart.yaml` is read.
#[derive(Deserialize)]
struct Chart {
    name: String,
    #[serde(default)]
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    alias: Option<String>,
}

impl Charts {
    /// All charts at or below a folder. No link is followed. What begins with a dot was not meant, and the packages of npm are nobody's
    /// sources and more than all others.
    ///
    /// # Errors
    /// When something cannot be looked at, or it is too much.
    pub(super) fn below(root: &Path) -> Result<Self, String> {
        let mut charts = Self::default();
        let (mut entries, mut left) = (0, LONGEST_TOGETHER);
        let mut folders = vec![(PathBuf::new(), DEEPEST)];
        while let Some((folder, below)) = folders.pop() {
            let mut inner = Vec::new();
            for entry in fs::read_dir(root.join(&folder)).map_err(|error| unread(&folder, &error))? {
                let entry = entry.map_err(|error| unread(&folder, &error))?;
                entries += 1;
                if entries > MOST {
                    return Err(format!("there are more than {MOST} files and folders"));
                }
                let (name, path) = (entry.file_name(), folder.join(entry.file_name()));
                let kind = entry.file_type().map_err(|error| unread(&path, &error))?;
                // One that is packed, as `helm dependency update` leaves it, comes before a folder that was left there.
                if !kind.is_dir() && folder.ends_with(INNER) && name.as_encoded_bytes().ends_with(b".tgz") {
                    charts.mixed.insert(folder.clone());
                }
                if kind.is_file() && name == CHART {
                    charts.add(root, &path, &mut left)?;
                } else if kind.is_dir() && !name.as_encoded_bytes().starts_with(b".") && name != "node_modules" {
                    let below = below
                        .checked_sub(1)
                        .ok_or_else(|| format!("{}: is more than {DEEPEST} folders deep", Input::File(path.clone())))?;
                    inner.push((path, below));
                }
            }
            // In the order of their names, so that always the same is told first.
            inner.sort_by(|one, other| other.cmp(one));
            folders.append(&mut inner);
        }
        Ok(charts)
    }

    /// Notes a chart.
    fn add(&mut self, root: &Path, path: &Path, left: &mut u64) -> Result<(), String> {
        let read = Input::File(root.join(path)).read(Accepted::RegularFiles, LONGEST.min(*left));
        let bytes = read.map_err(|error| unread(path, &error))?;
        *left -= bytes.len() as u64;
        let chart = str::from_utf8(&bytes)
            .ok()
            .and_then(|text| serde_saphyr::from_str_with_options::<Chart>(text, yaml_options::embedded()).ok());
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        self.all.insert(folder.clone());
        match chart {
            Some(Chart { name, dependencies }) => {
                if dependencies.iter().any(|it| it.alias.is_some()) {
                    self.mixed.insert(folder.join(INNER));
                }
                self.by_name.entry(name).or_default().push(folder);
            }
            None => self.nameless.push(folder),
        }
        Ok(())
    }

    /// The only file that a template can be: `shop/templates/web.yaml` is of the chart `shop`, and
    /// `shop/charts/db/templates/db.yaml` of the chart `db` in its folder `charts`.
    pub(super) fn only_file(&self, root: &Path, template: &str) -> Option<PathBuf> {
        let is_plain = |part: &&str| matches!(Path::new(part).components().next(), Some(Component::Normal(_)));
        let parts: Vec<&str> = template.split('/').collect();
        if !parts.iter().all(is_plain) {
            return None;
        }
        let (chart, mut rest) = parts.split_first()?;
        let mut folders: Vec<&PathBuf> = self.named(chart)?.iter().collect();
        // A part of another chart is rendered with it, and may be another version of what was rendered alone.
        if folders.iter().all(|it| self.is_part(it)) {
            return None;
        }
        while let [INNER, inner, below @ ..] = rest {
            let parents: BTreeSet<PathBuf> = folders.iter().map(|of| of.join(INNER)).collect();
            if !parents.is_disjoint(&self.mixed) {
                return None;
            }
            let is_inside = |it: &&PathBuf| it.parent().is_some_and(|at| parents.contains(at));
            folders = self.named(inner)?.iter().filter(is_inside).collect();
            rest = below;
        }
        let nameless = self.nameless.iter().filter(|it| file(root, it, rest).is_some());
        let mut files = folders.into_iter().filter_map(|folder| file(root, folder, rest));
        files.next().filter(|_| files.next().is_none() && nameless.count() == 0)
    }

    /// Whether a chart lies in the folder of another one for its parts.
    fn is_part(&self, folder: &Path) -> bool {
        let whole = folder.parent().filter(|at| at.ends_with(INNER)).and_then(Path::parent);
        whole.is_some_and(|whole| self.all.contains(whole))
    }

    /// The charts of a name; nothing where there are too many to be compared.
    fn named(&self, name: &str) -> Option<&[PathBuf]> {
        let few = |all: &&Vec<PathBuf>| all.len() <= MOST_OF_A_NAME && self.nameless.len() <= MOST_OF_A_NAME;
        self.by_name.get(name).filter(few).map(Vec::as_slice)
    }
}

/// The regular file on this way, which no link is a part of.
fn file(root: &Path, folder: &Path, way: &[&str]) -> Option<PathBuf> {
    let (last, folders) = way.split_last()?;
    let mut path = folder.to_owned();
    let kind = |path: &Path| fs::symlink_metadata(root.join(path)).ok().map(|it| it.file_type());
    for part in folders {
        path.push(part);
        kind(&path).filter(fs::FileType::is_dir)?;
    }
    path.push(last);
    kind(&path).filter(fs::FileType::is_file)?;
    Some(path)
}

fn unread(path: &Path, error: &io::Error) -> String {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    format!("{}: cannot be read: {error}", Input::File(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        folder
    }

    fn only_file(root: &Path, template: &str) -> Option<String> {
        let charts = Charts::below(root).expect("all could be read");
        charts.only_file(root, template).map(|path| path.to_str().expect("UTF-8").to_owned())
    }

    #[test]
    fn a_chart_is_known_by_the_name_that_it_gives_itself() {
        let files = folder(&[
            ("deploy/store/Chart.yaml", "name: shop\n"),
            ("deploy/store/templates/a/web.yaml", ""),
            ("deploy/store/charts/database/Chart.yaml", "{name: db, version: 1.0.0}"),
            ("deploy/store/charts/database/templates/db.yaml", ""),
            // Rendered by helm, and a chart that nobody means with this name.
            ("rendered/shop/templates/a/web.yaml", ""),
            ("db/Chart.yaml", "name: db"),
            ("db/templates/db.yaml", ""),
        ]);
        let of = |template| only_file(files.path(), template);
        assert_eq!(of("shop/templates/a/web.yaml").as_deref(), Some("deploy/store/templates/a/web.yaml"));
        let inner = "deploy/store/charts/database/templates/db.yaml";
        assert_eq!(of("shop/charts/db/templates/db.yaml").as_deref(), Some(inner));
        assert_eq!(of("db/templates/db.yaml"), None, "two charts have this name and file");
        for other in [
            "store/templates/a/web.yaml",
            "shop/templates/web.yaml",
            "shop/charts/db",
            "shop/charts",
            "shop",
            "",
            "shop/templates/a",
            "shop//templates/a/web.yaml",
            "shop/templates/../templates/a/web.yaml",
            "shop/./templates/a/web.yaml",
            "shop/charts/../charts/db/templates/db.yaml",
            "/shop/templates/a/web.yaml",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(only_file(&files.path().join("db"), "db/templates/db.yaml").as_deref(), Some("templates/db.yaml"));
    }

    #[test]
    fn of_two_charts_with_one_name_the_one_that_has_the_file_is_meant() {
        let files = folder(&[
            ("a/Chart.yaml", "name: shop"),
            ("a/templates/web.yaml", ""),
            ("b/Chart.yaml", "name: shop"),
            ("b/templates/api.yaml", ""),
            ("c/Chart.yaml", "name: [\n"),
            ("c/templates/api.yaml", ""),
            ("node_modules/d/Chart.yaml", "name: shop"),
            ("node_modules/d/templates/web.yaml", ""),
            (".e/Chart.yaml", "name: shop"),
            (".e/templates/web.yaml", ""),
        ]);
        assert_eq!(only_file(files.path(), "shop/templates/web.yaml").as_deref(), Some("a/templates/web.yaml"));
        assert_eq!(
            only_file(files.path(), "shop/templates/api.yaml"),
            None,
            "the name of c is not known: it may be it"
        );
    }

    #[test]
    fn where_helm_may_have_taken_another_chart_none_is_meant() {
        let umbrella = [("shop/Chart.yaml", "name: shop"), ("shop/charts/db/Chart.yaml", "name: db")];
        let part = "shop/charts/db/templates/db.yaml";
        let inner = [&umbrella[..], &[(part, "")]].concat();
        assert_eq!(only_file(folder(&inner).path(), part).as_deref(), Some(part));
        assert_eq!(
            only_file(folder(&inner).path(), "db/templates/db.yaml"),
            None,
            "a chart of this name from elsewhere"
        );
        let packed = [&inner[..], &[("shop/charts/db-2.0.0.tgz", "")]].concat();
        assert_eq!(only_file(folder(&packed).path(), part), None, "the packed one comes first");
        let mut aliased = inner.clone();
        aliased[0].1 = "name: shop\ndependencies: [{name: postgres, alias: db}]";
        assert_eq!(only_file(folder(&aliased).path(), part), None, "another one under its name");
    }

    #[test]
    fn no_link_is_followed() {
        let files = folder(&[
            ("here/shop/Chart.yaml", "name: shop"),
            ("here/api/Chart.yaml", "name: api"),
            ("here/api/templates/x", ""),
            ("there/web.yaml", ""),
            ("other/Chart.yaml", "name: other"),
            ("other/templates/web.yaml", ""),
        ]);
        let here = files.path().join("here");
        symlink(files.path().join("there"), here.join("shop/templates")).expect("a link");
        symlink(files.path().join("there/web.yaml"), here.join("api/templates/web.yaml")).expect("a link");
        symlink(files.path().join("other"), here.join("other")).expect("a link");
        symlink(&here, here.join("loop")).expect("a link");
        for chart in ["shop", "api", "other"] {
            assert_eq!(only_file(&here, &format!("{chart}/templates/web.yaml")), None, "{chart}");
        }
    }

    #[test]
    fn what_is_too_much_is_told_and_not_half_known() {
        let deep = format!("{}x", "a/".repeat(DEEPEST + 1));
        let long = format!("name: shop # {}", "x".repeat(1 << 20));
        for (name, text, wanted) in [
            (deep.as_str(), "", "a: is more than 32 folders deep"),
            ("a/Chart.yaml", long.as_str(), "a/Chart.yaml: cannot be read: is longer than 1048576 bytes"),
        ] {
            let error = Charts::below(folder(&[(name, text)]).path()).expect_err("too much");
            assert!(error.ends_with(wanted), "{error}");
        }
        let error = Charts::below(Path::new("/nowhere")).expect_err("not there");
        assert!(error.starts_with(".: cannot be read: "), "{error}");
    }
}
