// step FILE PROGRAM…: runs the program step by step, with all its threads, and writes the addresses of the
// executable's code that it reached to the file, each once.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

// Where packaging/build links an executable to; libraries, the vDSO and the stack are far above.
#define END 0x1000000UL

static unsigned char reached[END];

int main(int count, char **arguments)
{
	FILE *file = count > 2 ? fopen(arguments[1], "w") : NULL;
	if (!file)
		return perror("step FILE PROGRAM"), 2;
	pid_t program = fork();
	if (program == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		execv(arguments[2], arguments + 2);
		perror(arguments[2]);
		_exit(127);
	}
	int status, code = 1;
	waitpid(program, &status, 0);
	ptrace(PTRACE_SETOPTIONS, program, 0, PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
	for (pid_t thread = program; thread > 0; thread = waitpid(-1, &status, __WALL)) {
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (thread == program)
				code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
			continue;
		}
		struct user_regs_struct registers;
		if (ptrace(PTRACE_GETREGS, thread, 0, &registers) == 0 && registers.rip < END && !reached[registers.rip]) {
			reached[registers.rip] = 1;
			fprintf(file, "%016llx\n", registers.rip);
		}
		int signal = WSTOPSIG(status);
		ptrace(PTRACE_SINGLESTEP, thread, 0, signal == SIGTRAP || signal == SIGSTOP ? 0 : signal);
	}
	return fclose(file) ? 1 : code;
}
