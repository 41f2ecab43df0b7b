# What libsupc++ asks about threads before it guards the construction of a function's static objects: there is one, so
# nobody ever waits, and the system call for waiting is never made.

	.section .rodata.__libc_single_threaded, "a", @progbits
	.weak __libc_single_threaded
	.type __libc_single_threaded, @object
__libc_single_threaded:
	.byte 1
	.size __libc_single_threaded, . - __libc_single_threaded

	.section .text.syscall, "ax"
	.weak syscall
	.type syscall, @function
syscall:
	or $-1, %rax
	ret
	.size syscall, . - syscall

	.section .note.GNU-stack, "", @progbits
