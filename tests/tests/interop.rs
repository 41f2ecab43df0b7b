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
    hosted_graft: Hosted x Graft;
    hosted_jitlink19: Hosted x Jitlink19;
    hosted_jitlink22: Hosted x Jitlink22;
    hosted_jitlink22_slab: Hosted x Jitlink22Slab;
    hosted_jitlink19_tcp: Hosted x Jitlink19Tcp;
    hosted_jitlink22_tcp: Hosted x Jitlink22Tcp;
    hosted_lli19: Hosted x Lli19;
    hosted_lli22: Hosted x Lli22;
    microvm_graft: Microvm x Graft;
    microvm_jitlink19: Microvm x Jitlink19;
    microvm_jitlink22: Microvm x Jitlink22;
    microvm_jitlink22_slab: Microvm x Jitlink22Slab;
    microvm_jitlink19_tcp: Microvm x Jitlink19Tcp;
    microvm_jitlink22_tcp: Microvm x Jitlink22Tcp;
    microvm_lli19: Microvm x Lli19;
    microvm_lli22: Microvm x Lli22;
    q35_graft: Q35 x Graft;
    q35_jitlink19: Q35 x Jitlink19;
    q35_jitlink22: Q35 x Jitlink22;
    q35_jitlink22_slab: Q35 x Jitlink22Slab;
    q35_lli19: Q35 x Lli19;
    q35_lli22: Q35 x Lli22;
    stock19_graft: Stock19 x Graft;
    stock22_graft: Stock22 x Graft;
    stock19_jitlink19: Stock19 x Jitlink19;
    stock22_jitlink22: Stock22 x Jitlink22;
    stock22_jitlink22_slab: Stock22 x Jitlink22Slab;
    stock19_lli19: Stock19 x Lli19;
    stock22_lli22: Stock22 x Lli22;
}
