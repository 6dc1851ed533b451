//! UDP as programs use it: between two stacks on one cable, and the same over the kernel's own sockets, which say what is right.

mod alike;
mod batches;
mod descriptor;
mod hostile;
mod room;
mod trains;
mod world;
