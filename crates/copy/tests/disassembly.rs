//! Looks at the machine code of the kernels, as it stands in this very test program: the streaming ones must store
//! non-temporally, and no way may lead from such a store to the return except past the fence; the cached ones must not
//! store non-temporally at all. An optimiser, or a change of an intrinsic, could take either away and no result would
//! differ.

#![cfg(all(target_arch = "x86_64", not(miri)))]

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use object::{Object, ObjectSection, ObjectSymbol};
use onecopy_copy::{Blocks, Kernel, Store, find};
use onecopy_sys::map::{Span, Spans};
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
    functions("onecopy_copy::arch::")
}

/// The functions of this program whose paths begin so, by the rest of them.
fn functions(prefix: &str) -> BTreeMap<String, Body> {
    let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let object = object::File::parse(&*file).unwrap();
    let mut kernels = BTreeMap::new();
    for symbol in object.symbols().filter(|symbol| symbol.size() > 0) {
        let Ok(name) = symbol.name() else { continue };
        let name = format!("{:#}", rustc_demangle::demangle(name));
        let Some(path) = name.strip_prefix(prefix) else { continue };
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

/// What the bench row `reference` does, and what the documents say is done by SIMD.
#[inline(never)]
fn add_up_blocks(spans: Spans<'_>) -> u64 {
    let mut sums = [0u64; 8];
    for block in Blocks::new(spans) {
        for (sum, word) in sums.iter_mut().zip(block.words()) {
            *sum = sum.wrapping_add(word);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

/// The innermost loop that has an instruction of this kind.
fn innermost(body: &Body, has: impl Fn(&Instruction) -> bool) -> Option<Vec<Instruction>> {
    let back = body.values().filter(|jump| {
        matches!(jump.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch)
            && jump.near_branch_target() <= jump.ip()
    });
    let loops = back.map(|jump| -> Vec<Instruction> {
        body.range(jump.near_branch_target()..=jump.ip()).map(|(_, instruction)| *instruction).collect()
    });
    loops.filter(|instructions| instructions.iter().any(&has)).min_by_key(Vec::len)
}

#[test]
fn a_loop_over_blocks_keeps_them_in_registers() {
    let bytes: Vec<u8> = (0..640).map(|i| (i % 251) as u8).collect();
    let expected =
        bytes.as_chunks().0.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
    assert_eq!(add_up_blocks([Span::of_shared(&bytes), Span::EMPTY]), expected);

    let sixteen = |instruction: &Instruction| {
        matches!(instruction.mnemonic(), Mnemonic::Movdqu | Mnemonic::Vmovdqu)
            && instruction.op1_kind() == OpKind::Memory
    };
    let code =
        innermost(body(&functions("disassembly::"), "add_up_blocks"), sixteen).expect("a loop that loads");
    assert_eq!(code.iter().filter(|instruction| sixteen(instruction)).count(), 4, "{code:?}");
    for instruction in &code {
        let memory = (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
        assert!(!memory || sixteen(instruction), "{:?} goes through memory", instruction.code());
        assert!(instruction.memory_base() != Register::RSP, "{:?} uses the stack", instruction.code());
        assert!(instruction.flow_control() != FlowControl::Call, "a call at {:#x}", instruction.ip());
    }
    let adds =
        |instruction: &&Instruction| matches!(instruction.mnemonic(), Mnemonic::Paddq | Mnemonic::Vpaddq);
    assert_eq!(code.iter().filter(adds).count(), 4, "{code:?}");

    // Nor does a search store what it looks at: for one byte, or for the two at the ends of what is longer.
    assert_eq!(find(&[Span::of_shared(&bytes), Span::EMPTY], &[251]), None);
    assert_eq!(find(&[Span::of_shared(&bytes), Span::EMPTY], &[251, 252]), None);
    for (function, loads) in [("find_byte", 4), ("skip_whole", 8)] {
        let code = innermost(body(&functions("onecopy_copy::look::"), function), sixteen)
            .unwrap_or_else(|| panic!("{function}: a loop that loads"));
        assert_eq!(
            code.iter().filter(|instruction| sixteen(instruction)).count(),
            loads,
            "{function}: {code:?}"
        );
        let stored = code.iter().find(|instruction| {
            instruction.op0_kind() == OpKind::Memory
                && instruction.op_count() > 1
                && instruction.op1_register().is_vector_register()
        });
        assert!(stored.is_none(), "{function}: {stored:?}");
    }
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
