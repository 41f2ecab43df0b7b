# Rules for `llvm-jitlink -check` and `graft run --check`: both must find that all of them hold. The reference decodes only
# what has a size, knows no offset in next_pc, takes no blank behind a number, and reads no zero-fill.

	.text
	.globl main, load, immediate, compare, add, store, jump, callee
	.type main, @function
main:
# jitlink-check: decode_operand(main, 0) = callee - next_pc(main)
	callq callee
	.size main, . - main
load:
# jitlink-check: decode_operand(load, 4) = data - next_pc(load)
	leaq data(%rip), %rdi
	.size load, . - load
immediate:
# jitlink-check: decode_operand(immediate, 1) = data
	movabsq $data, %rax
	.size immediate, . - immediate
compare:
# jitlink-check: decode_operand(compare, 4) = \
# jitlink-check:   data - next_pc(compare) + 8
	cmpq data+8(%rip), %rcx
	.size compare, . - compare
add:
# jitlink-check: decode_operand(add, 5) = data - next_pc(add)
	addq data(%rip), %rdx
	.size add, . - add
store:
# jitlink-check: decode_operand(store, 3) = data - next_pc(store)
# jitlink-check: decode_operand(store, 5) = 7
	movl $7, data(%rip)
	.size store, . - store
jump:
# jitlink-check: decode_operand(jump, 0) = main - next_pc(jump)
	jmp main
	.size jump, . - jump
	.type callee, @function
callee:
	ret
	.size callee, . - callee

	.data
	.globl data, tail, distance
data:
# jitlink-check: *{8}data = callee + 3
# jitlink-check: (*{8}data)[15:0] = (callee + 3)[15:0]
	.quad callee + 3
	.size data, . - data
tail:
# jitlink-check: *{4}tail = outer[31:0]
# jitlink-check: *{4}data + 8 = 0x12345
	.long outer
	.size tail, . - tail
distance:
# jitlink-check: *{8}distance = main - distance
# jitlink-check: section_addr(checks.o, .data) = data
	.quad main - .
	.size distance, . - distance
