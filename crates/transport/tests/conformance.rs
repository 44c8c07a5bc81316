//! The conformance suite over each driver, protection and decorator.

mod common;

use common::{
    limited, memory_pair, near_tcp_pair, plain_pair, spared, tcp_pair, tls_memory_pair, tls_pair, traced,
};
use haul_transport::{Stream, conformance, memory};

conformance!(tcp, tcp_pair);
conformance!(tcp_on_one_host, near_tcp_pair);
conformance!(tls_over_tcp, tls_pair);
conformance!(tls_over_memory, tls_memory_pair);
conformance!(plain_over_tcp, plain_pair);
conformance!(memory_1_mib, memory_pair);
conformance!(memory_of_odd_size, odd_memory_pair);
conformance!(trace_over_memory, traced_memory);
conformance!(trace_over_tls, traced_tls);
conformance!(rate_over_memory, limited_memory);
conformance!(rate_over_tcp, limited_tcp);
conformance!(rate_over_tcp_on_one_host, limited_near_tcp);
conformance!(fault_over_memory, spared_memory);
conformance!(fault_over_tcp, spared_tcp);
conformance!(tls_over_fault_over_tcp, tls_over_fault);

conformance!(unclean_tls_over_tcp, tls_pair, [an_unclean_end_is_told]);
conformance!(unclean_tls_over_memory, tls_memory_pair, [an_unclean_end_is_told]);
conformance!(unclean_memory, memory_pair, [an_unclean_end_is_told]);

fn odd_memory_pair() -> (Stream, Stream) {
    memory::pair(10_007)
}

fn traced_memory() -> (Stream, Stream) {
    traced(memory_pair())
}

fn traced_tls() -> (Stream, Stream) {
    traced(tls_pair())
}

fn limited_memory() -> (Stream, Stream) {
    limited(memory_pair())
}

fn limited_tcp() -> (Stream, Stream) {
    limited(tcp_pair())
}

fn limited_near_tcp() -> (Stream, Stream) {
    limited(near_tcp_pair())
}

fn spared_memory() -> (Stream, Stream) {
    spared(memory_pair())
}

fn spared_tcp() -> (Stream, Stream) {
    spared(tcp_pair())
}

fn tls_over_fault() -> (Stream, Stream) {
    common::protect(&common::agreed(false), haul_transport::Purpose::Data(63), spared(tcp_pair()))
}
