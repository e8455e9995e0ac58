# The CPU table.
find_package(hwy REQUIRED)
set(CPU_SOURCES cpu_ops.cc
  head_linear/head_linear_cpu.cc linear/linear_cpu.cc linear/panel_product_cpu.cc
  linear/quantize_rows_cpu.cc moe_experts/moe_experts_cpu.cc
  silu_mul/silu_mul_cpu.cc attend_absorbed/attend_absorbed_cpu.cc
  attend_absorbed/attend_piece_cpu.cc attend_expanded/attend_expanded_cpu.cc
  attend_expanded/attend_tokens_cpu.cc prepare/prepare_cpu.cc)
set(CPU_LIBRARIES hwy::hwy)
set(CPU_TEST_SOURCES linear/linear_cpu_test.cc)
