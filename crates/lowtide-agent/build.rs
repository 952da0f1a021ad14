//! Compiles the agent's own memcpy and its like, hidden (`src/freestanding.c`), and makes a symbol that nobody defines an error
//! when the agent is linked, not when a program is started with it. (The optimizer has been seen to call the allocator's
//! `alloc_zeroed` after its symbol was gone.) And asks the loader to run the agent's constructor before all others: they may
//! start threads, and to change the C library under those is delicate (`src/hooks/beside.rs`).

fn main() {
    let objects = cc::Build::new()
        .file("src/freestanding.c")
        .opt_level(2)
        .warnings_into_errors(true)
        .flags(["-std=gnu11", "-ffreestanding", "-fno-builtin", "-fvisibility=hidden", "-fno-stack-protector"])
        // Or the compiler finds that memcpy's loop is a memcpy.
        .flag("-fno-tree-loop-distribute-patterns")
        .compile_intermediates();
    for object in objects {
        println!("cargo:rustc-cdylib-link-arg={}", object.display());
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/freestanding.c");
}
