//! The interop matrix: one test per pair of executor and controller, each over all programs of the table.

use graft_tests::interop::{Controller, Executor, row};

macro_rules! matrix {
    ($($test:ident: $executor:ident x $controller:ident;)*) => {
        const ROWS: usize = [$(stringify!($test)),*].len();

        $(
            #[test]
            fn $test() {
                row(Executor::$executor, Controller::$controller, ROWS);
            }
        )*
    };
}

matrix! {
    stock19_jitlink19: Stock19 x Jitlink19;
    stock22_jitlink22: Stock22 x Jitlink22;
    stock22_jitlink22_slab: Stock22 x Jitlink22Slab;
    stock19_lli19: Stock19 x Lli19;
    stock22_lli22: Stock22 x Lli22;
}
