//! A real C library, linked whole: musl's static archive leaves nothing to the executor, and the image does the same as
//! a program of the system's own linker when Linux loads it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use graft::link::{Externals, Input, Options, Unwind, parse, resolve};
use graft_protocol::ExecAddr;

const BASE: ExecAddr = ExecAddr(0x1000_0000);

/// Where the file's own headers go, which the C library looks for thread-local storage in.
const HEADERS: u64 = 0x0fff_0000;

/// Where Debian's `musl-dev` has it.
const MUSL: &str = "/usr/lib/x86_64-linux-musl";

const PROGRAM: &str = r#"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int by_value(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
static void last(void) { puts("at exit"); }
int main(int argc, char **argv) {
    int *numbers = malloc(1000 * sizeof *numbers);
    for (int i = 0; i < 1000; i++) numbers[i] = i * 7919 % 1000;
    qsort(numbers, 1000, sizeof *numbers, by_value);
    for (int i = 0; i < 1000; i++) if (numbers[i] != i) return 1;
    free(numbers);
    atexit(last);
    char text[40];
    snprintf(text, sizeof text, "%.3f %g %s", sin(strtod("1.5", NULL)) + pow(2, argc), 1e-9, argv[1]);
    printf("%s %zu %ld\n", text, strlen(text), strtol("0x7f", NULL, 0));
    errno = 0;
    return strtod("1e999", NULL) == HUGE_VAL && errno == ERANGE ? 42 : 2;
}
"#;

/// Runs a tool of musl's packages or fails with the name of the package.
fn musl_gcc(args: &[&str]) {
    let output = Command::new("musl-gcc").args(args).output();
    let output = output.unwrap_or_else(|error| panic!("musl-gcc: {error}; apt-get install musl-tools"));
    assert!(output.status.success(), "{args:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn executable(path: &Path, bytes: &[u8]) -> PathBuf {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

/// An ELF file of ours with one more program header, first, which loads the headers themselves.
fn with_headers(mut file: Vec<u8>) -> Vec<u8> {
    const START: usize = 64;
    const EACH: usize = 56;
    let count = u16::from_le_bytes([file[56], file[57]]);
    let table = file[START..START + EACH * usize::from(count)].to_vec();
    file[START..START + 4].copy_from_slice(&1_u32.to_le_bytes());
    file[START + 4..START + 8].copy_from_slice(&4_u32.to_le_bytes());
    for (index, value) in [0, HEADERS, HEADERS, 4096, 4096, 4096].into_iter().enumerate() {
        file[START + 8 + 8 * index..][..8].copy_from_slice(&value.to_le_bytes());
    }
    let behind = START + EACH;
    assert!(file[START + table.len()..4096].iter().all(|byte| *byte == 0), "something is in the way");
    file[behind..behind + table.len()].copy_from_slice(&table);
    file[56..58].copy_from_slice(&(count + 1).to_le_bytes());
    file
}

#[test]
fn a_c_program_with_musl_leaves_nothing_undefined_and_runs() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("musl");
    fs::create_dir_all(&dir).unwrap();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    fs::write(dir.join("main.c"), PROGRAM).unwrap();
    musl_gcc(&["-static", "-O1", &path("main.c"), "-o", &path("theirs")]);
    let expected = Command::new(path("theirs")).arg("word").output().unwrap();
    assert_eq!(expected.status.code(), Some(42));
    for flags in [&["-O0", "-fno-pic"][..], &["-O2", "-fPIC"]] {
        musl_gcc(&[&["-c", &path("main.c"), "-o", &path("main.o")], flags].concat());
        let names = [path("main.o"), format!("{MUSL}/crt1.o"), format!("{MUSL}/libc.a")];
        let files: Vec<Vec<u8>> = names.iter().map(|name| fs::read(name).unwrap()).collect();
        let inputs: Vec<Input<'_>> = names.iter().zip(&files).map(|(name, file)| Input::new(name, file)).collect();
        let options = Options { entry: Some("_start".to_owned()), unwind: Unwind::IfUsed, ..Options::default() };
        let objects = parse(&inputs).unwrap();
        let program = resolve(&objects, &options).unwrap();
        let needed: Vec<_> = program.externals().iter().filter(|external| !external.weak).collect();
        assert!(needed.is_empty(), "{needed:?}");
        let layout = program.layout().unwrap();
        let image = layout.link(BASE, &Externals::default()).unwrap();
        let ours = executable(&dir.join("ours"), &with_headers(image.to_elf().unwrap()));
        let output = Command::new(&ours).arg("word").output().unwrap();
        assert_eq!((output.status.code(), &output.stdout), (Some(42), &expected.stdout), "{flags:?}");
    }
}
