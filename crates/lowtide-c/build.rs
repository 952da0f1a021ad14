//! The name by which programs find the shared library, and that it stays where it is loaded.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liblowtide.so.0");
    // Its handler of SIGBUS and its threads stay when a program closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
