# How unwinders find the tables of the program: there is one image, and its index of unwind records is sorted.

# int _dl_find_object(void *pc, struct dl_find_object *found), as libgcc asks.
	.section .text._dl_find_object, "ax"
	.weak _dl_find_object
	.type _dl_find_object, @function
_dl_find_object:
	movabs $__executable_start, %rax
	movabs $_end, %rcx
	cmp %rax, %rdi
	jb 1f
	cmp %rcx, %rdi
	jae 1f
	movabs $__GNU_EH_FRAME_HDR, %rdx
	movq $0, (%rsi)
	mov %rax, 8(%rsi)
	mov %rcx, 16(%rsi)
	movq $0, 24(%rsi)
	mov %rdx, 32(%rsi)
	xor %eax, %eax
	ret
1:	or $-1, %eax
	ret
	.size _dl_find_object, . - _dl_find_object

# int dl_iterate_phdr(int (*callback)(struct dl_phdr_info *, size_t, void *), void *), as LLVM's libunwind asks: the image
# as one PT_LOAD, and the index as PT_GNU_EH_FRAME, made on the stack.
	.set INFO_SIZE, 64
	.set LOAD, INFO_SIZE
	.set INDEX, LOAD + 56
	.set FRAME, INDEX + 56 + 8
	.section .text.dl_iterate_phdr, "ax"
	.weak dl_iterate_phdr
	.type dl_iterate_phdr, @function
dl_iterate_phdr:
	sub $FRAME, %rsp
	mov %rdi, %r8
	mov %rsi, %rdx
	mov %rsp, %rdi
	xor %eax, %eax
	mov $FRAME / 8, %ecx
	rep stosq
	lea 5f(%rip), %rax
	mov %rax, 8(%rsp)		# dlpi_name
	lea LOAD(%rsp), %rax
	mov %rax, 16(%rsp)		# dlpi_phdr
	movw $2, 24(%rsp)		# dlpi_phnum
	movq $1, 32(%rsp)		# dlpi_adds
	movl $1, LOAD(%rsp)		# PT_LOAD
	movl $7, LOAD + 4(%rsp)
	movabs $__executable_start, %rax
	mov %rax, LOAD + 16(%rsp)	# p_vaddr
	movabs $_end, %rcx
	sub %rax, %rcx
	mov %rcx, LOAD + 32(%rsp)	# p_filesz
	mov %rcx, LOAD + 40(%rsp)	# p_memsz
	movl $0x6474e550, INDEX(%rsp)	# PT_GNU_EH_FRAME
	movl $4, INDEX + 4(%rsp)
	movabs $__GNU_EH_FRAME_HDR, %rax
	mov %rax, INDEX + 16(%rsp)
	movabs $__graft_unwind_index_end, %rcx
	sub %rax, %rcx
	mov %rcx, INDEX + 32(%rsp)
	mov %rcx, INDEX + 40(%rsp)
	mov %rsp, %rdi
	mov $INFO_SIZE, %esi
	call *%r8
	add $FRAME, %rsp
	ret
5:	.byte 0
	.size dl_iterate_phdr, . - dl_iterate_phdr

	.section .note.GNU-stack, "", @progbits
