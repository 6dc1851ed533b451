//! Looks at the machine code of the kernels, as it stands in this very test program: the streaming ones must store
//! non-temporally, and no way may lead from such a store to the return except past the fence; the cached ones must not
//! store non-temporally at all. An optimiser, or a change of an intrinsic, could take either away and no result would
//! differ.

#![cfg(all(target_arch = "x86_64", not(miri)))]

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use object::{Object, ObjectSection, ObjectSymbol};
use onecopy_copy::{Kernel, Store};
use std::collections::{BTreeMap, HashSet};

/// A function's instructions by address.
type Body = BTreeMap<u64, Instruction>;

fn decode(bytes: &[u8], address: u64) -> Body {
    let decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    decoder.into_iter().map(|instruction| (instruction.ip(), instruction)).collect()
}

/// The functions of this program below `onecopy_copy::arch`, by path.
fn kernels() -> BTreeMap<String, Body> {
    // What nobody calls isn't linked.
    for kernel in Kernel::all() {
        assert_eq!(kernel.copy(&mut [0; 999], &[1; 999], Store::Cached), Store::Cached);
    }
    let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let object = object::File::parse(&*file).unwrap();
    let mut kernels = BTreeMap::new();
    for symbol in object.symbols().filter(|symbol| symbol.size() > 0) {
        let Ok(name) = symbol.name() else { continue };
        let name = format!("{:#}", rustc_demangle::demangle(name));
        let Some(path) = name.strip_prefix("onecopy_copy::arch::") else { continue };
        let Some(section) = symbol.section_index().and_then(|index| object.section_by_index(index).ok())
        else {
            continue;
        };
        let Ok(Some(bytes)) = section.data_range(symbol.address(), symbol.size()) else { continue };
        kernels.insert(path.to_owned(), decode(bytes, symbol.address()));
    }
    kernels
}

fn non_temporal(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        instruction.mnemonic(),
        Movntdq
            | Vmovntdq
            | Movntps
            | Vmovntps
            | Movntpd
            | Vmovntpd
            | Movnti
            | Movntq
            | Maskmovdqu
            | Movdir64b
            | Movdiri
    )
}

/// The address of a return, or of a jump or call out of the function, that can be reached from `store` without a fence.
fn unfenced_way_out(body: &Body, store: u64) -> Option<u64> {
    let mut seen = HashSet::new();
    let mut todo = vec![body[&store].next_ip()];
    while let Some(address) = todo.pop() {
        if !seen.insert(address) {
            continue;
        }
        let Some(instruction) = body.get(&address) else { return Some(address) };
        if instruction.mnemonic() == Mnemonic::Sfence {
            continue;
        }
        match instruction.flow_control() {
            FlowControl::Next => todo.push(instruction.next_ip()),
            FlowControl::UnconditionalBranch => todo.push(instruction.near_branch_target()),
            FlowControl::ConditionalBranch => {
                todo.extend([instruction.next_ip(), instruction.near_branch_target()]);
            }
            // A call could lead to whoever publishes; the kernels have no reason for one between store and fence.
            _ => return Some(address),
        }
    }
    None
}

/// Whether the kernel may be called streaming: it stores with `code` and fences on every way out.
fn check_streaming(path: &str, body: &Body, code: Code) -> Result<(), String> {
    if !body.values().any(|instruction| instruction.code() == code) {
        return Err(format!("{path} has no {code:?}"));
    }
    for (address, _) in body.iter().filter(|(_, instruction)| non_temporal(instruction)) {
        if let Some(out) = unfenced_way_out(body, *address) {
            return Err(format!("{path}: the store at {address:#x} leaves at {out:#x} without sfence"));
        }
    }
    Ok(())
}

/// Whether the kernel may be called cached: no non-temporal store, and nothing called but memcpy and memset, whose lengths
/// `generic` bounds.
fn check_cached(path: &str, body: &Body) -> Result<(), String> {
    match body.values().find(|instruction| non_temporal(instruction)) {
        Some(store) => Err(format!("{path}: {:?} at {:#x}", store.mnemonic(), store.ip())),
        None => Ok(()),
    }
}

fn body<'a>(kernels: &'a BTreeMap<String, Body>, path: &str) -> &'a Body {
    kernels.get(path).unwrap_or_else(|| panic!("no function {path} among {:?}", kernels.keys()))
}

#[test]
fn streaming_kernels_stream_and_fence() {
    let kernels = kernels();
    for (path, code) in [
        ("x86_64::vector::sse2", Code::Movntdq_m128_xmm),
        ("x86_64::vector::avx2", Code::VEX_Vmovntdq_m256_ymm),
        ("x86_64::vector::avx512", Code::EVEX_Vmovntdq_m512_zmm),
        ("x86_64::movdir64b", Code::Movdir64b_r64_m512),
    ] {
        for function in ["copy_stream", "fill_stream"] {
            let path = format!("{path}::{function}");
            check_streaming(&path, body(&kernels, &path), code).unwrap();
        }
    }
}

#[test]
fn cached_kernels_do_not_stream() {
    let kernels = kernels();
    for path in
        ["x86_64::vector::sse2", "x86_64::vector::avx2", "x86_64::vector::avx512", "x86_64::erms", "generic"]
    {
        for function in ["copy_cached", "fill_cached"] {
            let path = format!("{path}::{function}");
            check_cached(&path, body(&kernels, &path)).unwrap();
        }
    }
    let rep = body(&kernels, "x86_64::erms::copy_cached");
    assert!(
        rep.values()
            .any(|instruction| instruction.mnemonic() == Mnemonic::Movsb && instruction.has_rep_prefix())
    );
    // The wide kernels really use their width.
    let wide = |path, code| body(&kernels, path).values().any(|instruction| instruction.code() == code);
    let stores = |path: &str| -> Vec<Code> {
        let stores =
            body(&kernels, path).values().filter(|instruction| instruction.op0_kind() == OpKind::Memory);
        stores.map(Instruction::code).collect()
    };
    assert!(
        [Code::VEX_Vmovaps_ymmm256_ymm, Code::VEX_Vmovdqa_ymmm256_ymm, Code::VEX_Vmovups_ymmm256_ymm]
            .into_iter()
            .any(|code| wide("x86_64::vector::avx2::copy_cached", code)),
        "{:?}",
        stores("x86_64::vector::avx2::copy_cached")
    );
    assert!(
        [
            Code::EVEX_Vmovaps_zmmm512_k1z_zmm,
            Code::EVEX_Vmovups_zmmm512_k1z_zmm,
            Code::EVEX_Vmovdqa64_zmmm512_k1z_zmm
        ]
        .into_iter()
        .any(|code| wide("x86_64::vector::avx512::copy_cached", code)),
        "{:?}",
        stores("x86_64::vector::avx512::copy_cached")
    );
}

/// The checks themselves, on code that they must tell apart.
#[test]
fn a_missing_fence_is_seen() {
    const STORE: &[u8] = &[0x66, 0x0f, 0xe7, 0x07]; // movntdq [rdi], xmm0
    const FENCE: &[u8] = &[0x0f, 0xae, 0xf8]; // sfence
    const RETURN: &[u8] = &[0xc3];
    const SKIP_FENCE: &[u8] = &[0x74, 0x03]; // je over the fence
    let check =
        |parts: &[&[u8]]| check_streaming("it", &decode(&parts.concat(), 0x1000), Code::Movntdq_m128_xmm);
    check(&[STORE, FENCE, RETURN]).unwrap();
    assert!(check(&[STORE, RETURN]).unwrap_err().contains("leaves at 0x1004 without sfence"));
    assert!(check(&[STORE, SKIP_FENCE, FENCE, RETURN]).is_err());
    assert!(check(&[FENCE, STORE, RETURN]).is_err());
    assert!(check(&[FENCE, RETURN]).unwrap_err().contains("has no"));
    assert!(check_cached("it", &decode(&[STORE, FENCE, RETURN].concat(), 0)).is_err());
}
