//! The actions of SQS with the AWS SDK for Rust. See ../../test_other_programs.py.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::io;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    DeleteMessageBatchRequestEntry, Message, MessageAttributeValue, MessageSystemAttributeName,
    QueueAttributeName, SendMessageBatchRequestEntry,
};
use serde_json::json;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Asks the test for something that only it can do, and waits until it is done.
async fn ask(question: &str, ms: u32) -> Outcome {
    println!("{}", json!({"ask": question, "id": 0, "ms": ms}));
    tokio::task::spawn_blocking(|| io::stdin().read_line(&mut String::new())).await??;
    Ok(())
}

struct Program {
    sqs: Client,
}

impl Program {
    async fn queue(&self, name: &str, attributes: &[(QueueAttributeName, &str)]) -> Outcome<String> {
        let attributes: HashMap<_, _> =
            attributes.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
        let reply = self.sqs.create_queue().queue_name(name).set_attributes(Some(attributes)).send().await?;
        Ok(reply.queue_url.ok_or("no URL")?)
    }

    async fn send(&self, url: &str, body: &str) -> Outcome {
        self.sqs.send_message().queue_url(url).message_body(body).send().await?;
        Ok(())
    }

    async fn receive(&self, url: &str, wait: i32) -> Outcome<Vec<Message>> {
        let request = self.sqs.receive_message().queue_url(url).max_number_of_messages(10);
        let request = request.message_attribute_names("All").wait_time_seconds(wait);
        let request = request.message_system_attribute_names(MessageSystemAttributeName::All);
        Ok(request.send().await?.messages.unwrap_or_default())
    }

    async fn attribute(&self, url: &str, name: QueueAttributeName) -> Outcome<String> {
        let reply = self.sqs.get_queue_attributes().queue_url(url).attribute_names(name.clone()).send().await?;
        Ok(reply.attributes.unwrap_or_default().remove(&name).ok_or("no such attribute")?)
    }

    async fn queues(&self) -> Outcome {
        let url = self.queue("rust-queues", &[(QueueAttributeName::VisibilityTimeout, "45")]).await?;
        let found = self.sqs.get_queue_url().queue_name("rust-queues").send().await?;
        assert_eq!(found.queue_url(), Some(url.as_str()));
        assert_eq!(self.attribute(&url, QueueAttributeName::VisibilityTimeout).await?, "45");
        let listed = self.sqs.list_queues().queue_name_prefix("rust-q").send().await?;
        assert_eq!(listed.queue_urls(), [url.clone()]);
        self.sqs.tag_queue().queue_url(&url).tags("team", "blue").send().await?;
        let tags = self.sqs.list_queue_tags().queue_url(&url).send().await?;
        assert_eq!(tags.tags.unwrap_or_default()["team"], "blue");
        self.sqs.delete_queue().queue_url(url).send().await?;
        Ok(())
    }

    async fn message(&self) -> Outcome {
        let url = self.queue("rust-message", &[]).await?;
        let body = "höhe <&> \u{1f600}";
        let seal = Blob::new([0, 255, 128]);
        let size = MessageAttributeValue::builder().data_type("Number.int").string_value("7").build()?;
        let sealed = MessageAttributeValue::builder().data_type("Binary").binary_value(seal.clone()).build()?;
        let request = self.sqs.send_message().queue_url(&url).message_body(body);
        request.message_attributes("size", size).message_attributes("seal", sealed).send().await?;
        let got = self.receive(&url, 0).await?.remove(0);
        assert_eq!(got.body(), Some(body));
        let attributes = got.message_attributes.unwrap_or_default();
        assert_eq!(attributes["seal"].binary_value(), Some(&seal));
        assert_eq!(attributes["size"].string_value(), Some("7"));
        self.sqs.delete_message().queue_url(&url).set_receipt_handle(got.receipt_handle).send().await?;
        let hidden = QueueAttributeName::ApproximateNumberOfMessagesNotVisible;
        assert_eq!(self.attribute(&url, hidden).await?, "0");
        Ok(())
    }

    async fn batches(&self) -> Outcome {
        let url = self.queue("rust-batches", &[]).await?;
        let mut request = self.sqs.send_message_batch().queue_url(&url);
        for number in 0..10 {
            let entry = SendMessageBatchRequestEntry::builder().id(format!("e{number}"));
            let entry = entry.message_body(format!("m{number}"));
            request = request.entries(entry.delay_seconds(if number == 3 { 901 } else { 0 }).build()?);
        }
        let sent = request.send().await?;
        assert_eq!(sent.successful().len(), 9);
        assert_eq!(sent.failed()[0].id(), "e3");
        let mut request = self.sqs.delete_message_batch().queue_url(&url);
        for (number, message) in self.receive(&url, 0).await?.into_iter().enumerate() {
            let entry = DeleteMessageBatchRequestEntry::builder().id(format!("e{number}"));
            request = request.entries(entry.set_receipt_handle(message.receipt_handle).build()?);
        }
        let deleted = request.send().await?;
        assert_eq!((deleted.successful().len(), deleted.failed().len()), (9, 0));
        Ok(())
    }

    async fn visibility(&self) -> Outcome {
        let url = self.queue("rust-visibility", &[]).await?;
        self.send(&url, "again").await?;
        let first = self.receive(&url, 0).await?.remove(0);
        assert!(self.receive(&url, 0).await?.is_empty());
        let request = self.sqs.change_message_visibility().queue_url(&url).visibility_timeout(0);
        request.set_receipt_handle(first.receipt_handle).send().await?;
        assert_eq!(receives(&self.receive(&url, 0).await?), ["2"]);
        ask("advance", 30_000).await?;
        assert_eq!(receives(&self.receive(&url, 0).await?), ["3"]);
        Ok(())
    }

    async fn long_poll(&self) -> Outcome {
        let url = self.queue("rust-poll", &[]).await?;
        let (got, sent) = tokio::join!(self.receive(&url, 20), async {
            ask("parked", 0).await?;
            self.send(&url, "woken").await
        });
        sent?;
        assert_eq!(got?[0].body(), Some("woken"));
        Ok(())
    }

    async fn errors(&self) -> Outcome {
        let error = self.sqs.get_queue_url().queue_name("rust-none").send().await.expect_err("there is none");
        assert!(error.into_service_error().is_queue_does_not_exist());
        let url = self.queue("rust-errors", &[]).await?;
        let request = self.sqs.delete_message().queue_url(url).receipt_handle("made-up");
        let error = request.send().await.expect_err("it is made up");
        assert!(error.into_service_error().is_receipt_handle_is_invalid());
        Ok(())
    }

    async fn dead_letters(&self) -> Outcome {
        let dead = self.queue("rust-dead", &[]).await?;
        let arn = self.attribute(&dead, QueueAttributeName::QueueArn).await?;
        let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": "1"}).to_string();
        let attributes =
            [(QueueAttributeName::RedrivePolicy, policy.as_str()), (QueueAttributeName::VisibilityTimeout, "0")];
        let url = self.queue("rust-source", &attributes).await?;
        self.send(&url, "poison").await?;
        self.receive(&url, 0).await?;
        assert!(self.receive(&url, 0).await?.is_empty());
        assert_eq!(self.receive(&dead, 0).await?[0].body(), Some("poison"));
        Ok(())
    }

    async fn fifo(&self) -> Outcome {
        let attributes =
            [(QueueAttributeName::FifoQueue, "true"), (QueueAttributeName::ContentBasedDeduplication, "true")];
        let url = self.queue("rust.fifo", &attributes).await?;
        for body in ["a", "b", "a"] {
            let request = self.sqs.send_message().queue_url(&url).message_body(body);
            request.message_group_id("group").send().await?;
        }
        let got = self.receive(&url, 0).await?;
        assert_eq!(got.iter().map(|message| message.body().unwrap_or_default()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(self.receive(&url, 0).await?.is_empty());
        Ok(())
    }
}

fn receives(messages: &[Message]) -> Vec<&str> {
    let name = MessageSystemAttributeName::ApproximateReceiveCount;
    messages.iter().filter_map(|message| message.attributes()?.get(&name)).map(String::as_str).collect()
}

fn done(step: &str) {
    println!("{}", json!({"step": step}));
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(env::var("VEILMQ_ENDPOINT")?)
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(
            env::var("AWS_ACCESS_KEY_ID")?, env::var("AWS_SECRET_ACCESS_KEY")?, None, None, "tests",
        ))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    let program = Program { sqs: Client::from_conf(config) };
    program.queues().await?;
    done("queues");
    program.message().await?;
    done("message");
    program.batches().await?;
    done("batches");
    program.visibility().await?;
    done("visibility");
    program.long_poll().await?;
    done("long_poll");
    program.errors().await?;
    done("errors");
    program.dead_letters().await?;
    done("dead_letters");
    program.fifo().await?;
    done("fifo");
    Ok(())
}
