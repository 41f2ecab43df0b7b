//! What languages ask of a linker and its target beyond calls and data, on a machine: thread-local storage, indirect
//! functions, what runs before and after `main`,
//! exceptions.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use graft_tests::child::{self, End, Outcome};
use graft_tests::interop::Executor;
use graft_tests::objects;
use graft_tests::place;
use graft_tests::programs::Compiler::{Clang, ClangXx, Gcc, Gxx};
use graft_tests::programs::{Compiler, Unit};
use graft_tests::target::Target;
use graft_tests::tools;

const LIMIT: Duration = Duration::from_secs(60);

/// A machine for the programs of one test.
struct Machine(Target);

impl Machine {
    fn start() -> Self {
        Self(Target::start(Executor::Microvm).unwrap())
    }

    fn name(&self) -> &str {
        let Target::Ours { name, .. } = &self.0 else { panic!("one of ours") };
        name
    }

    fn run(&self, inputs: &[PathBuf]) -> Outcome {
        run(self.name(), inputs, &[])
    }
}

fn run(target: &str, inputs: &[PathBuf], words: &[&str]) -> Outcome {
    let mut command = Command::new(&place::graft().unwrap().command);
    child::run(command.args(["run", "-t", target]).args(inputs).arg("--").args(words), LIMIT).unwrap()
}

/// Compiles `sources`, each into an object of its own.
fn compile(compiler: Compiler, flags: &'static str, sources: &[&'static str]) -> Vec<PathBuf> {
    let folder = place::scratch("languages").join(format!("{compiler:?}{flags}{}", sources[0]).replace([' ', '='], ""));
    std::fs::create_dir_all(&folder).unwrap();
    sources.iter().map(|source| objects::compile(&Unit { source, compiler, flags }, &folder).unwrap()).collect()
}

fn ends(outcome: &Outcome, code: i32, console: &str) {
    assert_eq!(outcome.end, End::Exit(code), "{}", outcome.stderr);
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), console, "{}", outcome.stderr);
}

const THREAD_LOCAL: [&str; 2] = ["thread_local.c", "thread_other.c"];

#[test]
fn tls_in_all_models_works_on_a_machine() {
    let machine = Machine::start();
    for (compiler, flags) in [
        (Gcc, "-O1 -fno-pic"),
        (Gcc, "-O2 -fPIC"),
        (Gcc, "-O2 -fPIC -ftls-model=local-dynamic"),
        (Gcc, "-O2 -fPIC -ftls-model=initial-exec"),
        (Gcc, "-O0 -fPIC -mtls-dialect=gnu2"),
        (Gcc, "-O1 -fPIC -mcmodel=large"),
        (Clang, "-O2 -fPIC -fno-plt"),
    ] {
        let objects = compile(compiler, flags, &THREAD_LOCAL);
        for _ in 0..2 {
            ends(&machine.run(&objects), 48, "local\n");
        }
    }
}

#[test]
fn tls_is_refused_in_words_where_the_thread_pointer_is_not_the_programs() {
    let outcome = run("hosted", &compile(Gcc, "-O2 -fPIC", &THREAD_LOCAL), &[]);
    assert_eq!(outcome.end, End::Exit(125), "{}", outcome.stderr);
    let words = "this executor has no thread-local storage for loaded code: use a machine";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
}

#[test]
fn ifunc_resolvers_run_before_everything_else() {
    let machine = Machine::start();
    for (compiler, flags) in [(Gcc, "-O0"), (Gcc, "-O2 -fPIC"), (Gcc, "-O1 -fPIC -fno-plt"), (Clang, "-O0 -fPIC")] {
        let objects = compile(compiler, flags, &["indirect_functions.c", "indirect_other.c"]);
        ends(&machine.run(&objects), 42, "shared\nown\nshared\n");
        // Nothing in this needs an executor of ours.
        ends(&run("hosted", &objects, &[]), 42, "shared\nown\nshared\n");
    }
}

const AT_EXIT: &str = "preinit\nconstructor 101\nconstructor 200\nobject\nlocal\nmain\nsecond\nnested\nfirst\nlocal\nother\n\
                       object\ndestructor\ndestructor 200\ndestructor 101\n";

#[test]
fn atexit_cxa_atexit_and_fini_array_run_once_in_reverse_also_after_exit() {
    let machine = Machine::start();
    for compiler in [Gxx, ClangXx] {
        let objects = compile(compiler, "-O1 -fno-threadsafe-statics", &["at_exit.cpp", "at_exit_other.cpp"]);
        for target in [machine.name(), "hosted"] {
            ends(&run(target, &objects, &["name"]), 5, AT_EXIT);
            ends(&run(target, &objects, &["name", "exit"]), 6, AT_EXIT);
        }
    }
}

/// The static archives that a compiler's packages ship, by name.
fn archives(names: &[&str]) -> Vec<PathBuf> {
    let find = |name: &&str| {
        let output = Command::new("gcc").arg(format!("-print-file-name={name}")).output().unwrap();
        let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        assert!(path.is_absolute(), "no {name}: apt-get install g++");
        path
    };
    names.iter().map(find).collect()
}

const CXX_RUNTIME: [&str; 3] = ["libsupc++.a", "libgcc_eh.a", "libgcc.a"];

#[test]
fn exceptions_of_cxx_are_thrown_and_caught_on_a_machine() {
    let machine = Machine::start();
    for (compiler, flags) in [
        (Gxx, "-O1 -fexceptions -frtti"),
        (Gxx, "-O0 -fexceptions -frtti -fno-pic -ffunction-sections"),
        (ClangXx, "-O2 -fexceptions -frtti -fPIC"),
    ] {
        let mut inputs = compile(compiler, flags, &["throw_catch.cpp"]);
        inputs.extend(archives(&CXX_RUNTIME));
        let said = "unwound\nunwound\nunwound\ncaught base\nrethrow\ncaught int\ntext\n";
        ends(&machine.run(&inputs), 42, said);
    }
    for compiler in [Gxx, ClangXx] {
        let mut inputs = compile(compiler, "-O1 -fexceptions", &["cxx_objects.cpp"]);
        inputs.extend(archives(&CXX_RUNTIME));
        ends(&machine.run(&inputs), 42, "static begins\nthread begins\nthread ends\nstatic ends\n");
    }
    let mut inputs = compile(Gxx, "-O1 -fexceptions", &["uncaught.cpp"]);
    inputs.extend(archives(&CXX_RUNTIME));
    ends(&machine.run(&inputs), 134, "terminate called after throwing an instance of '3Odd'\n");
}

#[test]
fn panics_of_rust_unwind_and_are_caught_on_a_machine() {
    let mut inputs = compile(Gcc, "-O1 -w", &["rust_libc.c"]);
    let library = inputs[0].with_file_name("libcatch_unwind.a");
    let mut rustc = tools::rustc();
    rustc.args(["--edition=2024", "--crate-type=staticlib", "-Cpanic=unwind", "-O"]);
    rustc.arg(objects::case("catch_unwind.rs")).arg("-o").arg(&library);
    let outcome = child::run(&mut rustc, LIMIT).unwrap();
    assert!(outcome.success(), "{}", outcome.stderr);
    inputs.push(library);
    inputs.extend(archives(&["libgcc_eh.a", "libgcc.a"]));
    ends(&Machine::start().run(&inputs), 42, "unwound\nunwound\nunwound\n");
}
