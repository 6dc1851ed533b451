//! Room `onecopy`.
