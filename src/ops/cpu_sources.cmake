# The CPU table.
find_package(hwy REQUIRED)
set(CPU_SOURCES
  cpu_ops.cc all_reduce_norm/all_reduce_norm_cpu.cc adjust_logits/adjust_logits_cpu.cc
  attend_absorbed/attend_absorbed_cpu.cc attend_absorbed/attend_piece_cpu.cc
  attend_expanded/attend_expanded_cpu.cc attend_expanded/attend_tokens_cpu.cc
  combine/combine_cpu.cc convert/convert_cpu.cc dispatch/dispatch_cpu.cc embed/embed_cpu.cc gather_context/gather_context_cpu.cc
  head_linear/head_linear_cpu.cc linear/linear_cpu.cc log_probs/log_probs_cpu.cc mlp/mlp_cpu.cc
  moe_experts/moe_experts_cpu.cc rms_norm/rms_norm_cpu.cc rotate_and_cache/rotate_and_cache_cpu.cc route/choose_experts.cc
  route/route_cpu.cc sample/sample_cpu.cc silu_mul/silu_mul_cpu.cc)
# Plain loops, which the compiler vectorises (and never reassociates).
set_source_files_properties(
  all_reduce_norm/all_reduce_norm_cpu.cc combine/combine_cpu.cc convert/convert_cpu.cc embed/embed_cpu.cc gather_context/gather_context_cpu.cc
  moe_experts/moe_experts_cpu.cc rms_norm/rms_norm_cpu.cc sample/sample_cpu.cc
  attend_absorbed/attend_absorbed_cpu.cc PROPERTIES COMPILE_OPTIONS -O3)
set(CPU_LIBRARIES hwy::hwy)
set(CPU_TEST_SOURCES cpu_ops_test.cc expert_ranks_test.cc ranks_test.cc fp8_sums_test.cc kv_format_test.cc linear/linear_cpu_test.cc)
