# What runs when a program is unloaded: functions registered by atexit and for C++ destructors, the last first, and all
# of them before the functions of .fini_array (C++ ABI 3.3.6). One list per program, in memory of malloc's.

# A node: the next one, the function, its argument.
	.set NEXT, 0
	.set FUNCTION, 8
	.set ARGUMENT, 16
	.set SIZE, 24

	.section .text.atexit, "ax"
	.weak atexit
	.type atexit, @function
atexit:
	xor %esi, %esi
	jmp __cxa_atexit
	.size atexit, . - atexit

# With one thread, its objects end with the program; libsupc++ asks for the C library's form of it.
	.section .text.__cxa_atexit, "ax"
	.weak __cxa_atexit, __cxa_thread_atexit, __cxa_thread_atexit_impl
	.type __cxa_atexit, @function
	.type __cxa_thread_atexit, @function
	.type __cxa_thread_atexit_impl, @function
__cxa_atexit:
__cxa_thread_atexit:
__cxa_thread_atexit_impl:
	.reloc ., R_X86_64_NONE, unload
	push %rdi
	push %rsi
	sub $8, %rsp
	mov $SIZE, %edi
	call *malloc@GOTPCREL(%rip)
	add $8, %rsp
	pop %rsi
	pop %rdi
	test %rax, %rax
	je 1f
	mov %rdi, FUNCTION(%rax)
	mov %rsi, ARGUMENT(%rax)
	mov last(%rip), %rcx
	mov %rcx, NEXT(%rax)
	mov %rax, last(%rip)
	xor %eax, %eax
	ret
1:	or $-1, %eax
	ret
	.size __cxa_atexit, . - __cxa_atexit
	.size __cxa_thread_atexit, . - __cxa_thread_atexit
	.size __cxa_thread_atexit_impl, . - __cxa_thread_atexit_impl

# Behind every other entry, so that it is the first at unload.
	.section .fini_array.65537, "aw", @fini_array
unload:
	.quad __cxa_finalize

# A function may register more of them, and is called once.
	.section .text.__cxa_finalize, "ax"
	.weak __cxa_finalize
	.type __cxa_finalize, @function
__cxa_finalize:
	push %rbx
1:	mov last(%rip), %rbx
	test %rbx, %rbx
	je 2f
	mov NEXT(%rbx), %rax
	mov %rax, last(%rip)
	mov ARGUMENT(%rbx), %rdi
	call *FUNCTION(%rbx)
	mov %rbx, %rdi
	call *free@GOTPCREL(%rip)
	jmp 1b
2:	pop %rbx
	xor %eax, %eax
	ret
	.size __cxa_finalize, . - __cxa_finalize

	.section .bss.last, "aw", @nobits
	.balign 8
last:
	.skip 8

	.section .note.GNU-stack, "", @progbits
