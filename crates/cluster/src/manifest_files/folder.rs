//! The files of a folder that may contain manifests.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fmt, fs,
    io::{self, Cursor},
    path::{Component, Path, PathBuf},
};

use super::{LONGEST, tree};
use crate::{
    input::{Accepted, Input},
    tree::{Node, Value},
    yaml_documents::Documents,
};
use portreeve_facts::FileName;

const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
const MOST: usize = 100_000;
const DEEPEST: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Origin {
    #[default]
    Named,
    Folder,
}

impl Origin {
    /// A path that a user named may be a pipe. A pipe inside a folder is refused: if no program writes to the pipe, a
    /// read would block.
    pub(super) fn accepted(self) -> Accepted {
        match self {
            Self::Named => Accepted::Anything,
            Self::Folder => Accepted::RegularFiles,
        }
    }
}

#[derive(Default)]
pub(super) struct Found {
    pub(super) files: Vec<Input>,
    pub(super) failures: Vec<String>,
    /// Folders of Helm charts. The `templates` of a chart are not read, because only helm can render templates to
    /// manifests.
    pub(super) charts: Vec<PathBuf>,
    /// For each patch that is not read: the folder of the kustomization that lists the patch. A patch is not read,
    /// because a patch contains only a part of an object.
    pub(super) patched: Vec<PathBuf>,
    pub(super) origin: Origin,
    /// A text about each skipped patch in `perhaps_whole`.
    pub(super) left_out: Vec<String>,
    patches: BTreeMap<PathBuf, PathBuf>,
    /// The files that kustomizations list under `resources`, and patches outside of the kustomization's folder.
    perhaps_whole: BTreeSet<PathBuf>,
}

/// The files of a path: the path itself, or the files below a folder, sorted by name. Links to folders are not
/// followed, and names that begin with a dot are ignored. A folder that cannot be listed does not affect other folders.
pub(super) fn files(path: &Path) -> Found {
    let input = Input::from(path.to_owned());
    let mut found = Found::default();
    match fs::metadata(path) {
        _ if input == Input::Stdin => found.files.push(input),
        Ok(metadata) if !metadata.is_dir() => found.files.push(input),
        Ok(_) => {
            found.origin = Origin::Folder;
            found.collect(path, DEEPEST);
            found.leave_out_patches();
        }
        Err(error) => found.fail(path, format_args!("cannot be read: {error}")),
    }
    found
}

impl Found {
    fn collect(&mut self, folder: &Path, depth: usize) {
        let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => return self.fail(folder, format_args!("cannot be read: {error}")),
        };
        // In a chart, only the folder `templates` contains templates. The chart's folder may contain other manifests,
        // which are read.
        if entries.iter().any(|entry| entry.file_name() == "Chart.yaml") {
            let (templates, others): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|entry| entry.file_name() == "templates");
            entries = others;
            if !templates.is_empty() {
                self.charts.push(short(folder));
            }
        }
        for entry in entries.iter().filter(|entry| KUSTOMIZATIONS.iter().any(|name| entry.file_name() == *name)) {
            let path = entry.path();
            if path.is_dir() {
                continue;
            }
            match self.collect_patches(folder, &path) {
                // If the kustomization's name ends like a manifest's name, Portreeve also reads the file as a manifest.
                // The read as a manifest reports the error.
                Err(what) if !is_manifest(&path) => self.fail(&path, format_args!("{what}")),
                Ok(()) | Err(_) => {}
            }
        }
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries.iter().filter(|it| !it.file_name().as_encoded_bytes().starts_with(b".")) {
            let path = entry.path();
            match entry.file_type() {
                _ if self.files.len() + self.failures.len() > MOST => return,
                Ok(it) if it.is_dir() => match depth.checked_sub(1) {
                    Some(below) => self.collect(&path, below),
                    None => {
                        self.fail(&path, format_args!("is not read, because it is more than {DEEPEST} folders deep"));
                    }
                },
                Ok(it) if !is_manifest(&path) || (it.is_symlink() && path.is_dir()) => {}
                Ok(_) if self.files.len() == MOST => {
                    self.fail(
                        &path,
                        format_args!(
                            "is not read, because {MOST} files come before it; later files are not read either"
                        ),
                    );
                }
                Ok(_) => self.files.push(Input::File(short(&path))),
                Err(error) => self.fail(&path, format_args!("cannot be read: {error}")),
            }
        }
    }

    /// Notes the files that a kustomization lists as patches. A patch can also be a text in the kustomization. With
    /// Flux, the file of a patch may be outside of the folder.
    fn collect_patches(&mut self, folder: &Path, path: &Path) -> Result<(), String> {
        fn list<'a>(kustomization: &'a Node, key: &str) -> &'a [Node] {
            match kustomization.field(key).map(|it| &it.value) {
                Some(Value::List(items)) => items,
                _ => &[],
            }
        }
        let bytes = Input::File(path.to_owned()).read(Accepted::RegularFiles, LONGEST);
        let bytes = bytes.map_err(|error| format!("cannot be read: {error}"))?;
        let kustomization = tree(Cursor::new(bytes)).map_err(|_| "is not YAML".to_owned())?;
        let with_path = ["patches", "patchesJson6902"].into_iter().flat_map(|key| list(&kustomization, key));
        let paths = with_path.filter_map(|it| it.field("path")?.text());
        let paths = paths.chain(list(&kustomization, "patchesStrategicMerge").iter().filter_map(Node::text));
        let root = folder.canonicalize().map_err(|error| format!("cannot be read: {error}"))?;
        let file = |listed: &str| folder.join(listed).canonicalize().ok();
        for patch in paths.filter_map(file) {
            if !patch.starts_with(&root) {
                self.perhaps_whole.insert(patch.clone());
            }
            self.patches.insert(patch, short(folder));
        }
        let resources = list(&kustomization, "resources").iter().filter_map(Node::text);
        self.perhaps_whole.extend(resources.filter_map(file));
        Ok(())
    }

    /// Removes patches from the files. Any kustomization can list the file of another team as a patch. So the function
    /// does not remove a file in `perhaps_whole` that may contain a whole object.
    fn leave_out_patches(&mut self) {
        let Self { files, patched, left_out, patches, perhaps_whole, .. } = self;
        if patches.is_empty() {
            return;
        }
        files.retain(|file| {
            let Input::File(path) = file else { return true };
            let listed = path.canonicalize().ok().and_then(|path| patches.get_key_value(&path));
            let Some((patch, folder)) = listed else { return true };
            if perhaps_whole.contains(patch) {
                if !is_part(file) {
                    return true;
                }
                left_out.push(format!("{file}, a patch of the kustomization {}", folder.display()));
            }
            patched.push(folder.clone());
            false
        });
    }

    fn fail(&mut self, path: &Path, what: fmt::Arguments<'_>) {
        self.failures.push(format!("{}: {what}", Input::File(short(path))));
    }
}

/// Whether a file has only parts of objects. False if the file cannot be read, so that its error is reported.
fn is_part(file: &Input) -> bool {
    let Ok(bytes) = file.read(Accepted::RegularFiles, LONGEST) else { return false };
    // The YAML parser accepts UTF-16, and lint does not.
    let Ok(text) = String::from_utf8(bytes) else { return false };
    let mut documents = Documents::new(Cursor::new(text));
    while let Ok(true) = documents.advance() {
        match tree(&mut documents) {
            Ok(document) if !may_be_whole(&document) => {}
            Ok(_) | Err(_) => return false,
        }
    }
    true
}

/// Whether a value has a field that shows a whole object. A Service has a type, a selector or external IPs, and a
/// container has an image. Lint judges a file in `perhaps_whole` if the file has a field of a whole object.
fn may_be_whole(node: &Node) -> bool {
    match &node.value {
        Value::Mapping(fields) => fields
            .iter()
            .any(|(key, value)| matches!(&**key, "type" | "selector" | "externalIPs" | "image") || may_be_whole(value)),
        Value::List(items) => items.iter().any(may_be_whole),
        _ => false,
    }
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ENDINGS.iter().any(|it| ending.eq_ignore_ascii_case(it)))
}

fn short(path: &Path) -> PathBuf {
    match path.strip_prefix(".") {
        Ok(rest) if !rest.as_os_str().is_empty() => rest.to_owned(),
        _ => path.to_owned(),
    }
}

/// The name of an input for reports. The path is relative to the working directory. If the file is outside of the
/// working directory, the path is absolute.
pub(super) fn name(input: &Input) -> FileName {
    let name = input.to_string();
    let Input::File(path) = input else { return FileName::new(name.clone(), name.into()) };
    let leads_out = path.components().any(|it| it == Component::ParentDir);
    let found = leads_out.then(|| from_here(path)).flatten();
    FileName::new(name, found.unwrap_or_else(|| path.clone()))
}

fn from_here(path: &Path) -> Option<PathBuf> {
    let whole = path.parent()?.canonicalize().ok()?.join(path.file_name()?);
    let here = env::current_dir().ok()?;
    Some(whole.strip_prefix(here).map(Path::to_owned).unwrap_or(whole))
}
