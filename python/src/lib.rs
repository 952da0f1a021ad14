//! What Python can't do by itself: regions, and guards. What users see is `lowtide/__init__.py`.

use std::sync::{Arc, Mutex, PoisonError};

use lowtide_config::{codec, size};
use lowtide_region::{Delivery, Error, Region, Resident, Swap};
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The error as Python has it.
fn raised(error: Error) -> PyErr {
    let line = error.to_string();
    match error {
        Error::TooLarge { .. } => PyMemoryError::new_err(line),
        Error::Guarded => PyBufferError::new_err(line),
        Error::Userfaultfd { .. } | Error::System { .. } => PyOSError::new_err(line),
        Error::Lost | Error::UnderRun | Error::Forked => PyOSError::new_err(line),
        _ => PyValueError::new_err(line),
    }
}

/// `512M`, or a number of bytes.
fn bytes(what: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(number) = value.extract::<u64>() {
        return Ok(number);
    }
    let text: String = value.extract().map_err(|_| PyValueError::new_err(format!("{what}: write it like 512M, or bytes")))?;
    size::parse_bytes(&text).map_err(|why| PyValueError::new_err(format!("{what}: {why}")))
}

fn delivery(text: &str) -> PyResult<Delivery> {
    match text {
        "in-thread" => Ok(Delivery::InThread),
        "monitor" => Ok(Delivery::Monitor),
        "user-monitor" => Ok(Delivery::UserMonitor),
        _ => Err(PyValueError::new_err(format!("delivery: `{text}` is unknown: use in-thread, monitor or user-monitor"))),
    }
}

/// A region, until it is closed.
#[pyclass(frozen)]
struct Native(Mutex<Option<Arc<Region>>>);

impl Native {
    fn region(&self) -> PyResult<Arc<Region>> {
        let region = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        region.clone().ok_or_else(|| PyValueError::new_err("the region is closed: make another one"))
    }
}

#[pymethods]
impl Native {
    #[new]
    #[pyo3(signature = (length, ram, swap, codec_name, delivery_name, group))]
    fn new(
        py: Python<'_>,
        length: usize,
        ram: Option<&Bound<'_, PyAny>>,
        swap: Option<&str>,
        codec_name: Option<&str>,
        delivery_name: Option<&str>,
        group: Option<&Native>,
    ) -> PyResult<Native> {
        let mut builder = Region::builder(length);
        if let Some(ram) = ram {
            builder = builder.ram(bytes("ram", ram)?);
        }
        if let Some(swap) = swap {
            builder = builder.swap(swap.parse::<Swap>().map_err(raised)?);
        }
        if let Some(name) = codec_name {
            let codec = codec::parse(name).map_err(|why| PyValueError::new_err(format!("codec `{name}`: {why}")))?;
            builder = builder.codec(codec);
        }
        if let Some(name) = delivery_name {
            builder = builder.delivery(delivery(name)?);
        }
        if let Some(group) = group {
            builder = builder.group(group.region()?.group());
        }
        let region = py.detach(|| builder.build()).map_err(raised)?;
        Ok(Native(Mutex::new(Some(Arc::new(region)))))
    }

    /// Address of the first byte.
    fn address(&self) -> PyResult<usize> {
        Ok(self.region()?.as_ptr() as usize)
    }

    fn length(&self) -> PyResult<usize> {
        Ok(self.region()?.len())
    }

    /// Nobody may have a view.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if place.as_ref().is_some_and(|region| region.is_guarded()) {
            return Err(raised(Error::Guarded));
        }
        let region = place.take();
        drop(place);
        py.detach(|| drop(region));
        Ok(())
    }

    fn set_ram(&self, ram: &Bound<'_, PyAny>) -> PyResult<()> {
        self.region()?.set_ram(bytes("ram", ram)?).map_err(raised)
    }

    fn prefetch(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<()> {
        let region = self.region()?;
        py.detach(|| region.prefetch(start..stop)).map_err(raised)
    }

    fn evict(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<()> {
        let region = self.region()?;
        py.detach(|| region.evict(start..stop)).map_err(raised)
    }

    fn drop_range(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<()> {
        let region = self.region()?;
        // SAFETY: Python has no references into memory; who reads it at the same time reads old bytes or zeros.
        py.detach(|| unsafe { region.drop_shared(start, stop) }).map_err(raised)
    }

    fn resident(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<NativeGuard> {
        let region = self.region()?;
        // SAFETY: the region stays where it is as long as the Arc beside the guard lives, which is dropped after it.
        let borrowed: &'static Region = unsafe { &*Arc::as_ptr(&region) };
        let guard = py.detach(|| borrowed.resident(start..stop)).map_err(raised)?;
        Ok(NativeGuard(Mutex::new(Some(Held { _guard: guard, _region: region }))))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let s = self.region()?.stats().map_err(raised)?;
        let dict = PyDict::new(py);
        for (name, value) in [
            ("ram_limit", s.ram_limit),
            ("ram_now", s.ram_now),
            ("own_bytes", s.own_bytes),
            ("pool_bytes", s.pool_bytes),
            ("pool_stored_bytes", s.pool_stored_bytes),
            ("stored_pages", s.stored_pages),
            ("file_pages", s.file_pages),
            ("resident_bytes", s.resident_bytes),
            ("faults", s.faults),
            ("first_touches", s.first_touches),
            ("pages_in", s.pages_in),
            ("pages_out", s.pages_out),
            ("longest_fault_ns", s.longest_fault_ns),
        ] {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }
}

/// In this order: the guard goes first.
struct Held {
    _guard: Resident<'static>,
    _region: Arc<Region>,
}

/// A range that stays in memory until it is released.
#[pyclass(frozen)]
struct NativeGuard(Mutex<Option<Held>>);

#[pymethods]
impl NativeGuard {
    fn release(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

#[pymodule]
fn _lowtide(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Native>()?;
    module.add_class::<NativeGuard>()
}
