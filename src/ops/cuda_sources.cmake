# The CUDA tables, and the same tests of ops over it: cuda_test skips what it cannot run
# where there is no GPU.
set(CUDA_PORTABLE_SOURCES
  adjust_logits/adjust_logits_cuda.cu all_gather/all_gather_cuda.cu
  all_reduce_norm/all_reduce_norm_cuda.cu attend_absorbed/attend_absorbed_cuda.cu
  attend_expanded/attend_chunk_cuda.cu attend_expanded/attend_expanded_cuda.cu
  verify_drafts/verify_drafts_cuda.cu combine/combine_cuda.cu convert/convert_cuda.cu commit/commit_cuda.cu propose_ngram/propose_ngram_cuda.cu prepare_drafts/prepare_drafts_cuda.cu add_draft/add_draft_cuda.cu dispatch/dispatch_cuda.cu
  embed/embed_cuda.cu gather_context/gather_context_cuda.cu gather_tokens/gather_tokens_cuda.cu
  log_probs/log_probs_cuda.cu
  moe_experts/bf16_experts_cuda.cu moe_experts/grouped_gemm_cuda.cu
  moe_experts/moe_experts_cuda.cu prepare_inputs/prepare_inputs_cuda.cu rms_norm/rms_norm_cuda.cu
  rotate_and_cache/rotate_and_cache_cuda.cu
  route/route_cuda.cu sample/sample_cuda.cu silu_mul/silu_mul_cuda.cu)
set(CUDA_HOPPER_SOURCES
  attend_absorbed/mla_decode_columns.cu attend_absorbed/mla_decode_kernel.cu
  attend_absorbed/mla_decode_narrow.cu attend_absorbed/mla_decode_values.cu
  attend_expanded/flash_attend_kernel.cu)
fathom_cuda_sources(PORTABLE ${CUDA_PORTABLE_SOURCES} HOPPER ${CUDA_HOPPER_SOURCES})
fathom_library(ops_cuda KERNELS
  SOURCES cuda_ops.cc hopper_ops.cc quantized_copy_cuda.cc attend_absorbed/attend_absorbed_hopper.cc
    attend_absorbed/mla_decode_cuda.cc attend_expanded/attend_expanded_hopper.cc
    attend_expanded/flash_attend_cuda.cc head_linear/head_linear_cuda.cc
    head_linear/head_linear_hopper.cc linear/linear_cuda.cc linear/linear_hopper.cc
    mlp/mlp_cuda.cc mlp/mlp_hopper.cc moe_experts/grouped_gemm_cuda.cc moe_experts/moe_experts_hopper.cc
    ${CUDA_PORTABLE_SOURCES} ${CUDA_HOPPER_SOURCES}
  DEPENDS base tensor quant products products_cuda parallel parallel_cuda ops cuda
  LIBRARIES ${FATHOM_CUDART})
list(REMOVE_ITEM OPS_TEST_SOURCES contract_test.cc)  # of CPU tables alone
set(CUDA_TEST_SOURCES attend_absorbed/mla_decode_order_test.cu)
fathom_cuda_sources(PORTABLE ${CUDA_TEST_SOURCES})
fathom_test(cuda_test SOURCES ${OPS_TEST_SOURCES} ${CUDA_TEST_SOURCES} testing_cuda.cc DEPENDS ops ops_cuda)
