# Indirect functions (STT_GNU_IFUNC): asks each resolver for its function. Until then a slot holds the resolver.

	.section .preinit_array.1, "aw", @preinit_array
	.globl __graft_bind_indirect
	.hidden __graft_bind_indirect
__graft_bind_indirect:
	.quad bind_indirect

	.section .text.bind_indirect, "ax"
bind_indirect:
	push %rbx
	push %rbp
	sub $8, %rsp
	lea __graft_indirect_start(%rip), %rbx
	lea __graft_indirect_end(%rip), %rbp
1:	cmp %rbp, %rbx
	jae 2f
	call *(%rbx)
	mov %rax, (%rbx)
	add $8, %rbx
	jmp 1b
2:	add $8, %rsp
	pop %rbp
	pop %rbx
	xor %eax, %eax
	ret

	.hidden __graft_indirect_start, __graft_indirect_end
	.section .note.GNU-stack, "", @progbits
