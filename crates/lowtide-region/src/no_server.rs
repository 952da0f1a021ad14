//! Replaces `server.rs` without the feature `remote`.

use lowtide_core::store::Store;

use crate::error::Error;

#[derive(Debug)]
pub enum ServerThreads {}

pub enum Seat {}

impl ServerThreads {
    pub fn start(_spec: &str) -> Result<ServerThreads, Error> {
        Err(Error::Swap("pages on a server: build lowtide with its feature `remote`".to_owned()))
    }

    pub fn add_to(&self, _: &Store) -> Result<Seat, Error> {
        match *self {}
    }

    pub fn is_out_of_reach(&self) -> Error {
        match *self {}
    }

    pub fn say_what_is_odd(&self) {
        match *self {}
    }
}

impl Seat {
    pub fn leads_to(&self, _: &ServerThreads) {
        match *self {}
    }
}

pub unsafe fn forget_in_child() {}
