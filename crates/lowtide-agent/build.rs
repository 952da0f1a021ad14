//! A symbol that nobody defines is an error when the agent is linked, not when a program is started with it. (The optimizer has been
//! seen to call the allocator's `alloc_zeroed` after its symbol was gone.)

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    println!("cargo:rerun-if-changed=build.rs");
}
