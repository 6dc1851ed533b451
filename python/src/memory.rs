//! Buffers of Python's: what is sent from, and received into.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};

/// A contiguous buffer of an object's. Python keeps the memory while this lives.
pub struct Buffer(PyUntypedBuffer);

impl Buffer {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the buffer is not contiguous (C order): make a copy that is",
            ));
        }
        Ok(Buffer(buffer))
    }

    pub fn writable(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        let buffer = Buffer::of(object)?;
        if buffer.0.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only: give one that can be written"));
        }
        Ok(buffer)
    }

    pub fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps `len_bytes` contiguous bytes at `buf_ptr` until the buffer is released, which is when `self` is
        // dropped. That no other thread of the program writes them during the call is the caller's part of every
        // call of Python that lets the GIL go (socket.send, file.write); onecopy.send says it.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }

    /// Of a buffer from [`Buffer::writable`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 || self.0.readonly() {
            return &mut [];
        }
        // SAFETY: as in `bytes`, and the exporter said that it may be written.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

/// Where memory lies that Python gets to see. It is sent between threads as a number is; who follows it has a reason that it is still there.
#[derive(Clone, Copy)]
pub struct Region {
    pub at: *mut u8,
    pub len: usize,
}

// SAFETY: an address and a length. Only the functions below follow it, under what they ask for.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub const EMPTY: Region = Region { at: std::ptr::dangling_mut(), len: 0 };

    pub fn of(bytes: &[u8]) -> Region {
        Region { at: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }

    /// Copies the region to `buffer`. False where that is of another length.
    ///
    /// # Safety
    ///
    /// The region is mapped readable, and nobody writes there.
    pub unsafe fn copy_to(self, buffer: &mut [u8]) -> bool {
        if buffer.len() != self.len {
            return false;
        }
        // SAFETY: the caller's; `buffer` is ours alone, and as long.
        unsafe { std::ptr::copy_nonoverlapping(self.at.cast_const(), buffer.as_mut_ptr(), self.len) };
        true
    }

    /// Fills in what Python asks for with `__getbuffer__`: one dimension of bytes.
    ///
    /// # Errors
    ///
    /// BufferError where a read-only region is asked for to write.
    ///
    /// # Safety
    ///
    /// `view` is the one that Python gave to `__getbuffer__` of `owner`, and the region stays mapped until `owner` gets `__releasebuffer__`
    /// for it, where `writable` also for writing.
    pub unsafe fn export(
        self,
        owner: Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
        writable: bool,
    ) -> PyResult<()> {
        let len = isize::try_from(self.len)?;
        // SAFETY: `view` is Python's to fill in, and `owner` is alive; the function takes a reference of its own. The address is valid as this
        // function's caller says.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                owner.as_ptr(),
                self.at.cast::<c_void>(),
                len,
                c_int::from(!writable),
                flags,
            )
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
    }
}

/// Says to Python that nothing is exported, after a check of ours has failed.
///
/// # Safety
///
/// `view` is the one that Python gave to `__getbuffer__`.
pub unsafe fn refuse(view: *mut ffi::Py_buffer) {
    if !view.is_null() {
        // SAFETY: the caller's; Python asks for a null `obj` where the call fails.
        unsafe { (*view).obj = std::ptr::null_mut() };
    }
}
