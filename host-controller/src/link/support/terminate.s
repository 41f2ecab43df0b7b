# __gnu_cxx::__verbose_terminate_handler, in the place of libstdc++'s: that one needs the C library's streams and a
# demangler of tens of kilobytes to say the same.

	.section .text.terminate, "ax"
	.globl _ZN9__gnu_cxx27__verbose_terminate_handlerEv
	.type _ZN9__gnu_cxx27__verbose_terminate_handlerEv, @function
_ZN9__gnu_cxx27__verbose_terminate_handlerEv:
	push %rbx
	call __cxa_current_exception_type@PLT
	test %rax, %rax
	je 1f
	mov 8(%rax), %rbx
	cmpb $'*', (%rbx)
	sete %al
	movzbl %al, %eax
	add %rax, %rbx
	lea 2f(%rip), %rdi
	mov $3f - 2f, %esi
	call *graft_write@GOTPCREL(%rip)
	mov %rbx, %rdi
	call *strlen@GOTPCREL(%rip)
	mov %rbx, %rdi
	mov %rax, %rsi
	call *graft_write@GOTPCREL(%rip)
	lea 3f(%rip), %rdi
	mov $4f - 3f, %esi
	call *graft_write@GOTPCREL(%rip)
	call *abort@GOTPCREL(%rip)
1:	lea 4f(%rip), %rdi
	mov $5f - 4f, %esi
	call *graft_write@GOTPCREL(%rip)
	call *abort@GOTPCREL(%rip)
2:	.ascii "terminate called after throwing an instance of '"
3:	.ascii "'\n"
4:	.ascii "terminate called without an active exception\n"
5:
	.size _ZN9__gnu_cxx27__verbose_terminate_handlerEv, . - _ZN9__gnu_cxx27__verbose_terminate_handlerEv

	.section .note.GNU-stack, "", @progbits
