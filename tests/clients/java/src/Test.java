import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;

/** The program's side of the conversation with the test: reports and questions. See ../../program.py. */
final class Test {
    private static final BufferedReader ANSWERS = new BufferedReader(new InputStreamReader(System.in));

    interface Step {
        void run() throws Exception;
    }

    static void step(String name, Step step) throws Exception {
        step.run();
        System.out.println("{\"step\": \"" + name + "\"}");
    }

    /** Asks the test for something that only it can do, and waits until it is done. */
    static void ask(String question, int ms) throws IOException {
        System.out.println("{\"ask\": \"" + question + "\", \"id\": 0, \"ms\": " + ms + "}");
        ANSWERS.readLine();
    }

    static void check(boolean holds, Object found) {
        if (!holds) {
            throw new AssertionError(found);
        }
    }

    static <E extends Exception> E failure(Class<E> kind, Step step) throws Exception {
        try {
            step.run();
        } catch (Exception error) {
            return kind.cast(error);
        }
        throw new AssertionError("no " + kind.getSimpleName());
    }
}
