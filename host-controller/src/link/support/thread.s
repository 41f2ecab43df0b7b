# The thread pointer, set before anything else runs, and addresses of thread-local symbols where code asks for them.
# One thread: its block of storage is the image's own, and its control block lies where the thread pointer points.

	.section .preinit_array.0, "aw", @preinit_array
	.globl __graft_start_thread
	.hidden __graft_start_thread
__graft_start_thread:
	.quad start_thread

	.section .text.start_thread, "ax"
start_thread:
	lea __graft_thread_pointer(%rip), %rdi
	mov %rdi, (%rdi)
	jmp *graft_set_thread_pointer@GOTPCREL(%rip)

	.section .text.__tls_get_addr, "ax"
	.weak __tls_get_addr
	.type __tls_get_addr, @function
__tls_get_addr:
	lea __graft_thread_start(%rip), %rax
	add 8(%rdi), %rax
	ret
	.size __tls_get_addr, . - __tls_get_addr

	.hidden __graft_thread_pointer, __graft_thread_start
	.section .note.GNU-stack, "", @progbits
